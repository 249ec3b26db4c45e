"""Runs all CUDA tests and GPU benchmarks of a bundle on this machine, in under nine minutes, and writes the
results as JSON and as a short table. It continues after failures. The most important checks come first: kernels,
libraries, device, NCCL, plans on several ranks, runs, benchmarks.

Exit code: 0 everything passed; 1 something failed; 2 wrong arguments; 3 there is no GPU, so programs were only
started; 4 nothing failed, but something was skipped. Needs only Python's standard library.
"""

import argparse
import array
import collections
import contextlib
import ctypes
import datetime
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import site
import struct
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

SECTIONS = ("starts", "tests", "ranks", "demo", "bench", "sanitizer")
# File names under which programs load the vendor's libraries.
LIBRARIES = ("libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2", "libnvrtc.so.13")

# Prefixes of the names of test programs, the most important first; all others come before the last.
TESTS = ("kernels", "library_math", "cuda_plans", "device", "transport_nccl", "", "gpu_plans")
# Time limits in seconds.
TEST_LIMIT = 100
TEST_LIMITS = {"gpu_plans_test": 170}
# The lines that a program prints for completed cases.
CASE = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:,.*)? \((\d+) ms\)$", re.MULTILINE)

Outcome = collections.namedtuple("Outcome", "code seconds output timed_out")


def parse():
    p = argparse.ArgumentParser(
        prog="gpu_check.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu_check.json"),
                   help="file for the results (default: gpu_check.json)")  # fmt: skip
    p.add_argument("--only", default=",".join(SECTIONS), help="some of %(default)s")
    p.add_argument("--seconds", type=float, default=520, help="time for all checks (default: 520)")
    p.add_argument("bundle", type=pathlib.Path, nargs="?", default=pathlib.Path(__file__).parent,
                   help="folder or archive from gpu_bundle.sh (default: this script's folder)")  # fmt: skip
    options = p.parse_args()
    options.only = options.only.split(",")
    for section in options.only:
        if section not in SECTIONS:
            p.error(f"--only takes some of {','.join(SECTIONS)}, not '{section}'")
    if options.seconds < 1:
        p.error("--seconds takes at least 1")
    options.bundle = options.bundle.resolve()
    if not options.bundle.exists():
        p.error(f"there is no '{options.bundle.name}'")
    if options.bundle.is_dir() and not (options.bundle / "bundle.json").exists():
        p.error(f"{options.bundle.name} is not a bundle: bench/gpu_bundle.sh creates one")
    return options


def fail(message):
    print(f"gpu_check: {message}", file=sys.stderr)
    sys.exit(2)


def unpack(archive, work):
    """The folder of an unpacked bundle. tar needs programs for compression, which Python has built in."""
    try:
        subprocess.run(["tar", "-xf", archive, "-C", work], stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        try:
            shutil.unpack_archive(archive, work)
        except (OSError, shutil.ReadError, EOFError) as error:
            fail(f"cannot unpack {archive.name}: {error}")
    bundle = work / "cadre-gpu"
    if not (bundle / "bundle.json").exists():
        fail(f"{archive.name} is not a bundle: bench/gpu_bundle.sh creates one")
    return bundle


def find_gpu():
    """(name of the first card, None), or (None, why there is none)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return None, f"no NVIDIA driver: {error}"
    code = driver.cuInit(0)
    if code != 0:
        return None, f"the NVIDIA driver does not start: cuInit returns {code}"
    count = ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        return None, "the NVIDIA driver finds no GPU"
    name = ctypes.create_string_buffer(200)
    driver.cuDeviceGetName(name, len(name), 0)
    return name.value.decode(), None


def library_folders():
    """Folders of this machine with the vendor's libraries, from Python wheels or a toolkit."""
    candidates = []
    for folder in [*site.getsitepackages(), site.getusersitepackages(), *sys.path]:
        candidates += sorted(glob.glob(os.path.join(folder or ".", "nvidia", "*", "lib")))
    candidates += ["/usr/local/cuda/lib64"]
    return [
        folder
        for folder in dict.fromkeys(candidates)
        if any(os.path.exists(os.path.join(folder, name)) for name in LIBRARIES)
    ]


def library_version(folders, library, function, by_pointer=False):
    """The version that a library reports, and its file; None if it cannot be loaded."""
    paths = [os.path.join(folder, library) for folder in folders]
    for path in [*filter(os.path.exists, paths), library]:
        try:
            get = getattr(ctypes.CDLL(path), function)
        except OSError:
            continue
        get.restype = ctypes.c_size_t
        version = ctypes.c_int(0)
        returned = get(ctypes.byref(version)) if by_pointer else get()
        return {"version": version.value if by_pointer else returned, "file": path}
    return None


def json_lines(output):
    """The lines of an output that are JSON objects."""
    found = []
    for line in output.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found += [json.loads(line)] if line.startswith("{") else []
    return found


def priority(test):
    """Position of a test program in TESTS."""
    found = [i for i, name in enumerate(TESTS) if name and test["name"].startswith(name)]
    return found[0] if found else TESTS.index("")


class Check:
    """The checks of one bundle on one machine; results are collected in `records`."""

    def __init__(self, options, work):
        self.options = options
        self.bundle = options.bundle
        self.work = work
        self.about = json.loads((self.bundle / "bundle.json").read_text())
        self.folders = library_folders()
        self.deadline = time.monotonic() + options.seconds
        self.records = []
        self.bench_lines = []
        self.gpu, self.no_gpu = find_gpu()

    # Running programs.

    def left(self):
        return self.deadline - time.monotonic()

    def environment(self, own_libraries=True):
        libraries = [str(self.bundle / "lib")] if own_libraries else []
        libraries += self.folders
        libraries += [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "HOME": str(self.work)}

    def run(self, command, limit, own_libraries=True):
        """Runs a command and its children for at most `limit` seconds, or the remaining time."""
        limit = min(limit, self.left())
        if limit <= 0:
            return Outcome(None, 0.0, "", True)
        begin = time.monotonic()
        process = subprocess.Popen(
            [str(word) for word in command], cwd=self.work, env=self.environment(own_libraries),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        timed_out = False
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            timed_out = True
            # Kills the whole session, because a run has many processes.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                output, _ = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
        text = output.decode(errors="replace")
        return Outcome(process.returncode, time.monotonic() - begin, text, timed_out)

    def add(self, section, name, result, seconds=0.0, reason="", output=""):
        record = {"section": section, "name": name, "result": result,
                  "seconds": round(seconds, 2), "reason": reason}  # fmt: skip
        if result == "fail" and output:
            record["output"] = output[-6000:]
        self.records.append(record)
        print(f"{result:5} {seconds:7.1f} s  {section}/{name}{': ' if reason else ''}{reason}")
        sys.stdout.flush()

    def add_outcome(self, section, name, outcome, ok=""):
        """Adds the record of a command that should exit with 0."""
        if outcome.code is None:
            result, reason = "skip", "no time was left"
        elif outcome.timed_out:
            result, reason = "fail", f"exceeded its limit of {outcome.seconds:.0f} s"
        elif outcome.code != 0:
            result, reason = "fail", f"exit code {outcome.code}"
        else:
            result, reason = "pass", ok
        self.add(section, name, result, outcome.seconds, reason, outcome.output)

    # The sections.

    def starts(self):
        """Every program finds its libraries, with a GPU or without."""
        for program in sorted((self.bundle / "bin").iterdir()):
            outcome = self.run([program, "--help"], 20)
            self.add_outcome("starts", program.name, outcome)
        for test in self.about["tests"]:
            command = [self.bundle / "tests" / test["name"], "--gtest_list_tests"]
            self.add_outcome("starts", test["name"], self.run(command, 20))

    def tests(self):
        for test in sorted(self.about["tests"], key=priority):
            results = self.work / f"{test['name']}.xml"
            outcome = self.run([*self.command_of(test), f"--gtest_output=xml:{results}"],
                               TEST_LIMITS.get(test["name"], TEST_LIMIT))
            self.add_cases(test["name"], outcome, results)

    def command_of(self, test):
        arguments = [word.replace("{bundle}", str(self.bundle)) for word in test["arguments"]]
        return [self.bundle / "tests" / test["name"], *arguments]

    def add_cases(self, program, outcome, results):
        """Adds a record for each case, and one for the program if it failed outside of its cases."""
        try:
            cases = list(ElementTree.parse(results).getroot().iter("testcase"))
        except (OSError, ElementTree.ParseError):
            # A program that crashed leaves only its output.
            cases = []
            for word, case, milliseconds in CASE.findall(outcome.output):
                result = {"OK": "pass", "FAILED": "fail", "SKIPPED": "skip"}[word]
                self.add("tests", f"{program}/{case}", result, int(milliseconds) / 1000)
        failed = False
        for case in cases:
            name = f"{program}/{case.get('classname')}.{case.get('name')}"
            seconds = float(case.get("time", 0))
            skip, failure = case.find("skipped"), case.find("failure")
            if failure is not None:
                failed = True
                self.add("tests", name, "fail", seconds, "", failure.get("message", ""))
            elif skip is not None:
                reason = " ".join(skip.get("message", "").split("\n")[1:]).strip()
                self.add("tests", name, "skip", seconds, reason)
            elif case.get("status") == "run":
                self.add("tests", name, "pass", seconds)
        if not failed and (outcome.code != 0 or outcome.timed_out or not cases):
            self.add_outcome("tests", program, outcome)

    def programs(self):
        """A folder of Cadre's programs in which every worker appears to NCCL as a separate host, so that
        several can share one GPU."""
        folder = self.work / "programs"
        if not folder.exists():
            folder.mkdir()
            for program in (self.bundle / "bin").iterdir():
                if program.name != "cadre-worker":
                    shutil.copy2(program, folder / program.name)
            worker = folder / "cadre-worker"
            worker.write_text(
                "#!/bin/sh\n"
                # NCCL launches collectives of two communicators in the order of the host's calls.
                'NCCL_HOSTID="cadre-$$" NCCL_LAUNCH_ORDER_IMPLICIT=1\n'
                "NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1\n"
                "export NCCL_HOSTID NCCL_LAUNCH_ORDER_IMPLICIT NCCL_SOCKET_IFNAME NCCL_IB_DISABLE\n"
                f'exec "{self.bundle}/bin/cadre-worker" "$@"\n'
            )
            worker.chmod(0o755)
        return folder

    def local(self, spec, limit, *flags):
        """`cadre local` of a run file: (outcome, its JSON summary or None)."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="local-", dir=self.work))
        command = [self.programs() / "cadre", "local", spec, "-o", "json", "--quiet", "--norestart",
                   "--dir", folder, *flags]
        outcome = self.run(command, limit)
        if outcome.code != 0:
            # The logs of its processes.
            logs = [f"{path.name}: {path.read_text(errors='replace')[-1200:]}"
                    for path in sorted(folder.rglob("*.log"))]
            outcome = outcome._replace(output="\n".join([*logs, outcome.output]))
        return outcome, next(reversed(json_lines(outcome.output)), None)

    def ranks(self):
        """A small run on 1, 2 and 4 workers of this GPU ends with the weights of a run on the CPU."""
        reference = self.work / "checkpoint-cpu"
        if not self.train("reference on the CPU", "AUTO", reference, "--device", "cpu"):
            return
        for mesh, collectives in RANKS:
            name = f"{mesh} {collectives.lower()}"
            folder = self.work / f"checkpoint-{mesh}-{collectives}"
            outcome = self.train(name, collectives, folder, "--device", "cuda", "--mesh", mesh)
            if outcome:
                self.compare(name, outcome, reference, folder)

    def train(self, name, collectives, checkpoint, *flags):
        """The outcome of the small run; after a failure, adds a record and returns None."""
        spec = self.work / f"ranks-{collectives}.textproto"
        spec.write_text(RANKS_SPEC.replace("COLLECTIVES", collectives))
        outcome, _ = self.local(spec, 60, "--checkpoint", checkpoint, *flags)
        if outcome.code == 0 and not outcome.timed_out:
            return outcome
        self.add_outcome("ranks", name, outcome)
        return None

    def compare(self, name, outcome, reference, folder):
        try:
            error, where = largest_difference(read_model(reference), read_model(folder))
        except (OSError, ValueError, KeyError) as problem:
            self.add("ranks", name, "fail", outcome.seconds, f"no checkpoint to compare: {problem}")
            return
        result = "pass" if error <= RANKS_TOLERANCE else "fail"
        reason = f"weights differ by {error:.2g} of the largest of {where}"
        self.add("ranks", name, result, outcome.seconds, reason, outcome.output)

    def demo(self):
        """Two groups of two workers on this GPU, averaging through two aggregators."""
        source = self.bundle / "source/deploy/demo-gpu.textproto"
        if not source.exists():
            self.add("demo", "2 groups x 2 ranks", "skip", reason="the bundle has no demo-gpu.textproto")
            return
        spec = self.work / "demo-gpu.textproto"
        data = self.bundle / "data/fashion-mnist"
        spec.write_text(source.read_text().replace("/usr/share/datasets/fashion-mnist", str(data)))
        flags = ("--groups", "2", "--ranks", "2", "--aggregators", "2", "--device", "cuda")
        outcome, summary = self.local(spec, 150, *flags)
        ok = ""
        if outcome.code == 0 and summary is not None:
            self.bench_lines.append({"program": "demo", **summary})
            ok = f"test accuracy {summary['test_accuracy']}, {summary['samples_per_second']:.0f} samples/s"
        self.add_outcome("demo", "2 groups x 2 ranks", outcome, ok)

    def bench(self):
        """Runs the benchmarks that the bundle lists and keeps their lines of JSON."""
        for bench in self.about["benches"]:
            # Benchmarks that take a time limit as an argument end by themselves.
            seconds = max(int(min(bench["seconds"], self.left()) - 10), 1)
            words = [
                word.replace("{bundle}", str(self.bundle)).replace("{seconds}", str(seconds))
                for word in bench["command"]
            ]
            # PyTorch has its own copies of the libraries.
            outcome = self.run(words, bench["seconds"], own_libraries=words[0] != "python3")
            lines = json_lines(outcome.output)
            self.bench_lines += [{"program": bench["name"], **line} for line in lines]
            if outcome.code == 0 and not lines:
                self.add("bench", bench["name"], "fail", outcome.seconds,
                         "printed no line of JSON", outcome.output)
            else:
                self.add_outcome("bench", bench["name"], outcome, f"{len(lines)} lines")

    def sanitizer(self):
        """Memory errors and races of the kernels, if the tool is installed and the machine permits it."""
        tool = shutil.which("compute-sanitizer", path=os.environ.get("PATH", os.defpath) + ":/usr/local/cuda/bin")
        tests = [test for test in self.about["tests"] if test["name"].startswith("kernels")]
        for test in tests:
            for kind in ("memcheck", "racecheck"):
                self.sanitize(tool, kind, test)
        if not tests:
            self.add("sanitizer", "kernel tests", "skip", reason="the bundle has no kernel tests")

    def sanitize(self, tool, kind, test):
        name = f"{kind} {test['name']}"
        if tool is None:
            self.add("sanitizer", name, "skip", reason="compute-sanitizer is not on this machine")
            return
        outcome = self.run([tool, "--tool", kind, "--error-exitcode", "99", "--print-limit", "20",
                            *self.command_of(test)], 90)
        if "Device not supported" in outcome.output:
            reason = "compute-sanitizer does not support this machine's device"
            self.add("sanitizer", name, "skip", outcome.seconds, reason)
        elif outcome.timed_out and "=========     at " not in outcome.output:
            reason = f"not finished in {outcome.seconds:.0f} s; no error until then"
            self.add("sanitizer", name, "skip", outcome.seconds, reason)
        else:
            self.add_outcome("sanitizer", name, outcome)

    # The report.

    def machine(self):
        def output_of(*command):
            try:
                result = subprocess.run(command, capture_output=True, text=True, timeout=60)
            except (OSError, subprocess.TimeoutExpired):
                return None
            return result.stdout.strip() if result.returncode == 0 else None

        query = "--query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm,power.limit"
        torch = "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())"
        return {
            "card": self.gpu,
            "no_gpu": self.no_gpu,
            "nvidia_smi": output_of("nvidia-smi", query, "--format=csv,noheader"),
            "cores": os.cpu_count(),
            "system": " ".join(os.uname()),
            "python": sys.version.split()[0],
            "torch": output_of(sys.executable, "-c", torch),
            "nvcc": (output_of("nvcc", "--version") or "").splitlines()[-1:],
            "library_folders": self.folders,
            "cublaslt": library_version(self.folders, LIBRARIES[0], "cublasLtGetVersion"),
            "cudnn": library_version(self.folders, LIBRARIES[1], "cudnnGetVersion"),
            "nccl": library_version(self.folders, LIBRARIES[2], "ncclGetVersion", by_pointer=True),
        }

    def run_all(self):
        begin = time.monotonic()
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        print(f"gpu_check: {self.gpu or self.no_gpu}")
        for section in SECTIONS:
            if section not in self.options.only:
                continue
            if self.gpu is None and section != "starts":
                self.add(section, "all of it", "skip", reason=self.no_gpu)
                continue
            getattr(self, section)()
        counts = collections.Counter(record["result"] for record in self.records)
        report = {
            "date": date,
            "seconds": round(time.monotonic() - begin, 1),
            "bundle": {key: self.about[key] for key in ("commit", "built", "nvcc", "architectures")},
            "machine": self.machine(),
            "counts": {key: counts[key] for key in ("pass", "fail", "skip")},
            "bench": self.bench_lines,
            "records": self.records,
        }
        self.options.out.write_text(json.dumps(report, indent=1) + "\n")
        self.print_table(report)
        if counts["fail"]:
            return 1
        return 3 if self.gpu is None else 4 if counts["skip"] else 0

    def print_table(self, report):
        by_section = collections.defaultdict(collections.Counter)
        for record in self.records:
            by_section[record["section"]][record["result"]] += 1
        print(f"\n{'section':10} {'passed':>7} {'failed':>7} {'skipped':>8}")
        for section, counts in by_section.items():
            print(f"{section:10} {counts['pass']:7} {counts['fail']:7} {counts['skip']:8}")
        for line in self.bench_lines:
            print(json.dumps(line)[:300])
        for record in self.records:
            if record["result"] != "pass":
                print(f"{record['result']}: {record['section']}/{record['name']}: {record['reason']}")
        counts = report["counts"]
        print(f"{self.gpu or 'no GPU'}: {counts['pass']} passed, {counts['fail']} failed,"
              f" {counts['skip']} skipped in {report['seconds']:.0f} s; {self.options.out}")


RANKS_SPEC = """
name: "ranks"
model {
  input { channels: 3 height: 16 width: 16 }
  layer { name: "conv1" convolution { out_channels: 16 kernel: 3 padding: 1 } }
  layer { name: "norm1" batch_norm {} }
  layer { name: "relu1" relu {} }
  layer { name: "pool1" max_pool { kernel: 2 } }
  layer { name: "conv2" convolution { out_channels: 16 kernel: 3 padding: 1 } }
  layer { name: "relu2" relu {} }
  layer { name: "fc1" fully_connected { out_features: 64 } }
  layer { name: "relu3" relu {} }
  layer { name: "fc2" fully_connected { out_features: 10 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
data { synthetic { train_samples: 512 test_samples: 64 classes: 10 } }
batch_per_group: 32
optimizer { sgd { momentum: 0.9 } }
schedule { base_rate: 0.01 }
cluster { groups: 1 ranks_per_group: 1 collectives: COLLECTIVES }
stop { steps: 10 }
seed: 1
"""
# Whole programs, from a run file to a checkpoint. gpu_plans_test covers all splits and plans, and
# transport_nccl_gpu_test all algorithms.
RANKS = [
    ("data=1", "AUTO"),
    ("data=2", "RING"),
    ("data=2", "NATIVE"),
    ("data=2,model=2", "AUTO"),
    ("data=2,space=2", "AUTO"),
]
# Relative to the largest weight of a tensor, after ten steps in fp32: sums in another order differ in the
# last of 24 bits, which ten steps amplify to about 1e-6; factors rounded to 10 bits, as in TF32, would
# cause 1e-3.
RANKS_TOLERANCE = 1e-4


def read_model(folder):
    """Name -> values of the newest checkpoint in a folder."""
    paths = sorted(folder.glob("step-*/model.safetensors"), key=lambda path: int(
        re.fullmatch(r"step-(\d+)", path.parent.name)[1]))
    if not paths:
        raise OSError(f"{folder} has none")
    data = paths[-1].read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, about in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        if about["dtype"] != "F32":
            raise ValueError(f"{name} is {about['dtype']}")
        begin, end = about["data_offsets"]
        tensors[name] = array.array("f", data[8 + size + begin : 8 + size + end])
    return tensors


def largest_difference(one, other):
    """The largest difference, relative to the largest value of its tensor, and the name of the tensor."""
    if one.keys() != other.keys():
        raise KeyError(f"other tensors: {sorted(one.keys() ^ other.keys())}")
    worst = (0.0, next(iter(one)))
    for name, values in one.items():
        if len(values) != len(other[name]):
            raise ValueError(f"{name} has {len(other[name])} values for {len(values)}")
        # The gradient of a bias before a norm is rounding error only; compared with other weights the bias is 0.
        scale = max(max(map(abs, values)), 1e-2)
        # max() would ignore a NaN, which must exceed any tolerance.
        differences = [abs(a - b) for a, b in zip(values, other[name])]
        error = float("inf") if any(d != d for d in differences) else max(differences) / scale
        worst = max(worst, (error, name))
    return worst


def main():
    options = parse()
    options.out = options.out.absolute()
    with tempfile.TemporaryDirectory(prefix="cadre-gpu-check-") as work:
        if options.bundle.is_file():
            options.bundle = unpack(options.bundle, pathlib.Path(work))
        return Check(options, pathlib.Path(work)).run_all()


if __name__ == "__main__":
    sys.exit(main())
