"""Whole programs on this GPU: `cadre local` runs a coordinator, aggregators and workers of a run file."""

import array
import json
import pathlib
import re
import struct
import tempfile

from gpu_check.check import diagnostics, json_lines

RANKS_LIMIT = 45
DEMO_LIMIT = 90
DEMO_STEPS = 60
# All traffic of NCCL uses loopback. `cadre local` gives each worker a different NCCL_HOSTID, so that NCCL accepts
# several on one GPU.
NCCL = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}

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

class LocalRuns:
    """The sections `ranks` and `demo`."""

    def __init__(self, check):
        self.check = check
        self.work = pathlib.Path(check.processes.folder)

    def local(self, spec, limit, *flags, **environment):
        """`cadre local` of a run file: (outcome, its JSON summary or None)."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="local-", dir=self.work))
        command = [self.check.bundle / "bin/cadre", "local", spec, "-o", "json", "--quiet", "--norestart",
                   "--dir", folder, *flags]
        outcome = self.check.run(command, limit, **NCCL, **environment)
        if outcome.problem():
            # The logs of its processes.
            logs = [f"{path.name}: {path.read_text(errors='replace')[-1200:]}"
                    for path in sorted(folder.rglob("*.log"))]
            outcome.output = "\n".join([*logs, outcome.output])
        return outcome, next(reversed(json_lines(outcome.output)), None)

    def ranks(self):
        """A small run on 1, 2 and 4 workers of this GPU ends with the weights of a run on the CPU."""
        reference = self.work / "checkpoint-cpu"
        if not self.train("reference on the CPU", "AUTO", reference, "--device", "cpu"):
            return
        for mesh, collectives in RANKS:
            name = f"{mesh} {collectives.lower()}"
            folder = self.work / f"checkpoint-{mesh}-{collectives}"
            if not self.check.may_run("ranks", name):
                continue
            flags = ("--device", "cuda", "--mesh", mesh)
            if outcome := self.train(name, collectives, folder, *flags):
                self.compare(name, outcome, reference, folder)
            elif self.check.may_run("alone", f"ranks/{name}"):
                self.train_again(name, collectives, *flags)

    def spec(self, collectives):
        path = self.work / f"ranks-{collectives}.textproto"
        path.write_text(RANKS_SPEC.replace("COLLECTIVES", collectives))
        return path

    def train(self, name, collectives, checkpoint, *flags):
        """The outcome of the small run; after a failure, adds a result and returns None."""
        outcome, _ = self.local(self.spec(collectives), RANKS_LIMIT, "--checkpoint", checkpoint, *flags)
        if not outcome.problem():
            return outcome
        self.check.add("ranks", name, outcome)
        return None

    def train_again(self, name, collectives, *flags):
        """A run that failed, with synchronous kernels and with the logs of the libraries."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="logs-", dir=self.work))
        outcome, _ = self.local(self.spec(collectives), RANKS_LIMIT, *flags, **diagnostics(folder))
        logs = [path.read_text(errors="replace") for path in sorted(folder.iterdir())]
        outcome.output = "\n".join([*logs, outcome.output])
        self.check.add("alone", f"ranks/{name}", outcome, "passes alone")

    def compare(self, name, outcome, reference, folder):
        try:
            error, where = largest_difference(read_model(reference), read_model(folder))
        except (OSError, ValueError, KeyError) as problem:
            reason = f"no checkpoint to compare: {problem}"
            self.check.results.add("ranks", name, "fail", outcome.seconds, reason)
            return
        result = "pass" if error <= RANKS_TOLERANCE else "fail"
        reason = f"weights differ by {error:.2g} of the largest of {where}"
        self.check.results.add("ranks", name, result, outcome.seconds, reason, outcome.output)

    def demo(self):
        """Two groups of two workers on this GPU, averaging through two aggregators."""
        source = self.check.bundle / "source/deploy/demo-gpu.textproto"
        text = source.read_text()
        # The rate may rise for as many steps as the run has at most.
        for field, value in ((r"stop \{.*?\}", f"stop {{ steps: {DEMO_STEPS} }}"), (r"  warmup_steps: \d+", "  warmup_steps: 10")):
            text, found = re.subn(f"(?m)^{field}", value, text)
            if found != 1:
                self.check.results.add("demo", "2 groups x 2 ranks", "fail", reason=f"{source.name} has no {field}")
                return
        spec = self.work / "demo-gpu.textproto"
        data = self.check.bundle / "data/fashion-mnist"
        spec.write_text(text.replace("/usr/share/datasets/fashion-mnist", str(data)))
        flags = ("--groups", "2", "--ranks", "2", "--aggregators", "2", "--device", "cuda")
        outcome, summary = self.local(spec, DEMO_LIMIT, *flags)
        ok = ""
        if not outcome.problem() and summary is not None:
            self.check.results.add_bench_line("demo", summary)
            ok = f"test accuracy {summary.get('test_accuracy')}, {summary.get('samples_per_second')} samples/s"
        self.check.add("demo", "2 groups x 2 ranks", outcome, ok)


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
