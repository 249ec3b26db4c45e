"""Runs all CUDA tests and GPU benchmarks of a bundle on this machine. It continues after failures and ends within
--seconds, whatever hangs. Every result is appended to a file as one JSON line when it exists: first the facts about
the machine, at the end a summary.

Exit code: 0 everything passed; 1 something failed; 2 wrong arguments, or a bundle that cannot be used; 3 there is no
GPU, so programs were only started; 4 nothing failed, but something was skipped. Needs Python's standard library only.
"""

import argparse
import collections
import contextlib
import datetime
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

from gpu_check import archive, machine
from gpu_check.check import Check, run_again
from gpu_check.processes import Processes
from gpu_check.results import Results, say
from gpu_check.sections import SECTIONS, Sections

SECTIONS_HELP = """sections, which run in the order of --only:
  smoke              75 s: device, kernel, product, convolution, attention, capture, two ranks, one benchmark;
                     if a part of it does not pass, everything after it is skipped
  starts             every program starts, also without a GPU
  tests              all CUDA tests; tests:NAME those whose names begin with NAME, tests:NAME/FILTER their cases
                     that match a filter of GoogleTest
  ranks              a run on up to 4 workers has the weights of a run on the CPU
  demo               60 steps of deploy/demo-gpu.textproto
  bench              all benchmarks; bench:NAME one of them ('*' matches any characters)
  sanitizer          our own kernels under compute-sanitizer

Failed cases run again at the end, alone, with synchronous kernels and with the logs of NCCL and cuDNN.
"""
# Time before the end of --seconds at which no check runs any more.
RESERVE_SECONDS = 6.0
# Time before the end at which the program exits even if something hangs that should not.
EXIT_SECONDS = 0.5

SMOKE_FAILED = "the smoke test did not pass"

# What --only selects: a section, and for `tests` and `bench` a name and a filter.
Item = collections.namedtuple("Item", "section name pattern text")


class Interrupted(BaseException):
    """A signal asked the program to end."""


def item(text):
    section, _, rest = text.partition(":")
    if section not in SECTIONS:
        raise argparse.ArgumentTypeError(f"--only takes some of {','.join(SECTIONS)}, not '{text}'")
    if rest and section not in ("tests", "bench"):
        raise argparse.ArgumentTypeError(f"'{section}' has no parts, so '{text}' selects nothing")
    name, _, pattern = rest.partition("/") if section == "tests" else (rest, "", "")
    return Item(section, name, pattern, text)


def parse():
    p = argparse.ArgumentParser(
        prog="gpu_check.sh", description=__doc__, epilog=SECTIONS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu_check.jsonl"),
                   help="file to append the results to, as JSON lines (default: gpu_check.jsonl)")  # fmt: skip
    p.add_argument("--only", default=",".join(SECTIONS), help="sections (default: all), separated by commas")
    p.add_argument("--seconds", type=float, default=520, help="time for all checks (default: 520)")
    p.add_argument("bundle", type=pathlib.Path, nargs="?", default=pathlib.Path(__file__).parent.parent,
                   help="folder or archive from gpu_bundle.sh (default: this script's folder)")  # fmt: skip
    options = p.parse_args()
    try:
        options.only = [item(text) for text in options.only.split(",")]
    except argparse.ArgumentTypeError as error:
        p.error(str(error))
    if options.seconds < 10:
        p.error("--seconds takes at least 10")
    options.bundle = options.bundle.resolve()
    if not options.bundle.exists():
        p.error(f"there is no '{options.bundle.name}'")
    if options.bundle.is_dir() and not (options.bundle / "bundle.json").exists():
        p.error(f"{options.bundle.name} is not a bundle: bench/gpu_bundle.sh creates one")
    return options


def end_at(begin, options, processes, results):
    """Ends this program --seconds after its begin, even if its main thread hangs."""

    def end():
        with contextlib.suppress(OSError):
            results.write("result", section="check", name="time limit", result="fail",
                          reason=f"did not end in {options.seconds:.0f} s")  # fmt: skip
        processes.signal_all(signal.SIGKILL)
        os._exit(1)

    left = begin + options.seconds - time.monotonic()
    timer = threading.Timer(max(left - EXIT_SECONDS, 0.1), end)
    timer.daemon = True
    timer.start()
    # The kernel's timer, which needs no thread of this process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(left, 0.2))


def on_signal(number, _frame):
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


def open_bundle(options, work):
    """The folder of the bundle and what it states. Errors: archive.Refused."""
    bundle = archive.unpack(options.bundle, work) if options.bundle.is_file() else options.bundle
    about = archive.read_about(bundle, options.bundle.name)
    for each in options.only:
        known = {"tests": about["tests"], "bench": about["benches"]}.get(each.section, [])
        names = [entry["name"] for entry in known]
        chosen = Sections.chosen(each, known)
        if each.name and not chosen:
            raise archive.Refused(f"'{each.text}' selects nothing; there are {', '.join(names)}")
    return bundle, about


def run_sections(check, only, no_gpu):
    """Runs what was asked for. After a failed smoke test or without a GPU, what makes no sense is skipped."""
    sections = Sections(check)
    for each in only:
        if no_gpu and each.section != "starts":
            check.results.add(each.section, each.name or "all of it", "skip", reason=no_gpu)
            continue
        if not check.may_run(each.section, each.name or "all of it"):
            continue
        getattr(sections, each.section)(each)
        # A skipped case did not find the GPU that is there.
        smoke = [record for record in check.results.records if record["section"] == "smoke"]
        if any(record["result"] != "pass" for record in smoke):
            check.stopped = check.stopped or SMOKE_FAILED
    if check.stopped == SMOKE_FAILED:
        check.stopped = ""
    run_again(check)


def check_bundle(begin, options, processes, results):
    """Returns the exit code."""
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    left = options.seconds - RESERVE_SECONDS - (time.monotonic() - begin)
    facts = machine.facts(processes, machine.library_folders(), left)
    results.write("machine", date=started, arguments=sys.argv[1:], **facts)
    gpu, no_gpu = facts.get("card"), facts.get("no_gpu")
    say(f"gpu_check: {gpu or no_gpu}")
    if facts.get("hangs"):
        results.add("check", "driver", "fail", facts["seconds"], no_gpu)
    try:
        bundle, about = open_bundle(options, pathlib.Path(processes.folder))
    except archive.Refused as error:
        results.write("refused", reason=str(error))
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    results.write("bundle", **{key: about[key] for key in ("commit", "built", "nvcc", "architectures")})
    check = Check(bundle, about, processes, results, begin + options.seconds - RESERVE_SECONDS)
    try:
        run_sections(check, options.only, no_gpu)
    except Interrupted as signaled:
        results.add("check", "interrupted", "fail", reason=f"{signaled} ended the checks")
    except Exception as error:  # An error of this program: what is finished is summarized.
        results.add("check", "error", "fail", reason=repr(error), output=traceback.format_exc())
    code = results.exit_code(no_gpu)
    results.finish(gpu, code)
    return code


def process_begin():
    """When this process was started, on the clock of time.monotonic(): also the time that Python's start took counts."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - max(age, 0.0)


def main():
    begin = process_begin()
    options = parse()
    try:
        results = Results(options.out.absolute())
    except OSError as error:
        print(f"gpu_check: cannot write the results: {error}", file=sys.stderr)
        return 2
    work = tempfile.mkdtemp(prefix="cadre-gpu-check-")
    processes = Processes(work)
    end_at(begin, options, processes, results)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # nohup ignores SIGHUP.
        if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, on_signal)
    try:
        return check_bundle(begin, options, processes, results)
    except Interrupted as signaled:
        results.add("check", "interrupted", "fail", reason=f"{signaled} ended the checks")
        return 1
    finally:
        processes.end_all()
        shutil.rmtree(work, ignore_errors=True)
