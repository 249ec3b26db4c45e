#!/usr/bin/env python3
"""Compares training steps of Cadre and PyTorch on a GPU, run alternately on the same machine.

For each model and precision, PyTorch trains the same network with the same batch and optimizer (SGD with
momentum), channels last, in four modes: eager with cudnn.benchmark, and torch.compile with its default mode,
reduce-overhead (CUDA graphs) and max-autotune. Each run is a process of its own; bench_gpu_step runs before, between
and after those of PyTorch. Every step copies a batch from host memory to the card. The median of Cadre is compared
with the best mode of PyTorch.

    bench/gpu/gpu_step.py --programs build/bin                           everything
    bench/gpu/gpu_step.py --models gpt --precisions bf16 --modes eager,reduce-overhead --rounds 3
    bench/gpu/gpu_step.py --worker --model resnet50 --mode compile       PyTorch alone, one line

Prints the JSON line of each run when it ends, and a line "gpu_step_vs_torch" for each model and precision. Its
`ratio` is samples per second of Cadre divided by those of PyTorch's best mode. Both programs report the largest
number of bytes that their tensors had on the card. A run that exceeds --limit is killed and recorded; the others
go on. Without PyTorch only Cadre is measured.

Exit codes: 0: Cadre was measured for every model; 1: a run of Cadre failed, or the networks of the two programs
have different numbers of parameters; 3: this machine has no GPU; 4: a library has no plan for an operation of a
model, and nothing else failed.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
# torch_models.py and gpu_check are in the folder above; in a bundle, torch_models.py is in this folder.
sys.path.append(str(HERE.parent))
from gpu_check.check import json_lines  # noqa: E402
from gpu_check.processes import Processes  # noqa: E402

BATCHES = {"lenet": 512, "alexnet": 256, "vgg11": 64, "resnet18": 256, "resnet50": 128, "gpt": 64,
           "gpt2-small": 16}
MODES = ("eager", "compile", "reduce-overhead", "max-autotune")
# Exit codes of bench_gpu_step.
NO_GPU, NO_PLAN = 3, 4
# Exit code of the worker: PyTorch is missing, or does not find the GPU.
NO_TORCH = 5
# These record graphs, or choose kernels, in their first steps.
LONG_WARMUP = {"reduce-overhead": 15, "max-autotune": 15}


def parse():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--programs", type=os.path.abspath, default="build/bin", help="folder of bench_gpu_step")
    p.add_argument("--libraries", type=os.path.abspath, help="folder of shared libraries that bench_gpu_step needs and "
                   "PyTorch must not see")
    p.add_argument("--models", default=",".join(BATCHES), help="separated by commas")
    p.add_argument("--precisions", default="bf16,tf32", help="of bf16, tf32, fp32")
    p.add_argument("--modes", default=",".join(MODES), help="of PyTorch")
    p.add_argument("--batch", type=int, help="samples of a step; default: by model")
    p.add_argument("--rounds", type=int, default=3, help="runs of each mode of PyTorch")
    p.add_argument("--steps", type=int, default=20, help="timed steps of a run")
    p.add_argument("--warmup", type=int, default=6,
                   help="steps before these; at least 15 in modes that record graphs or choose kernels")
    p.add_argument("--limit", type=float, default=240, help="seconds of one run")
    p.add_argument("--autotune-limit", type=float, default=480,
                   help="seconds of one run with max-autotune")
    p.add_argument("--seconds", type=float, default=0,
                   help="time limit of everything; runs that do not fit are omitted (0: none)")
    p.add_argument("--inductor-cache", type=os.path.abspath,
                   help="folder in which torch.compile keeps what it compiled")
    p.add_argument("--worker", action="store_true", help="run PyTorch on one model and print one line")
    p.add_argument("--model", default="resnet50", choices=BATCHES, help="with --worker")
    p.add_argument("--precision", default="bf16", help="with --worker")
    p.add_argument("--mode", default="eager", choices=MODES, help="with --worker")
    p.add_argument("--torch-device", default="cuda", choices=["cuda", "cpu"],
                   help="cpu: to check the worker on a machine without a GPU")
    args = p.parse_args()
    for option, values, known in (("--models", args.models, BATCHES), ("--modes", args.modes, MODES),
                                  ("--precisions", args.precisions, ("bf16", "tf32", "fp32"))):
        for value in values.split(","):
            if value not in known:
                p.error(f"{option}: no '{value}'; there are {', '.join(known)}")
    if min(args.rounds, args.steps, args.warmup) < 1:
        p.error("--rounds, --steps and --warmup must be at least 1")
    return args


# --- PyTorch -------------------------------------------------------------------------------------------


def no_torch(why):
    print(f"gpu_step: {why}", file=sys.stderr)
    sys.exit(NO_TORCH)


def measure(steps, warmup, count):
    """Times of the steps."""
    begin = time.perf_counter()
    first = steps.step().item()
    for _ in range(warmup - 1):
        steps.step()
    steps.synchronize()
    warm = time.perf_counter()
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        # A step of Cadre returns the loss, so both programs wait for it.
        last = steps.step().item()
        seconds.append(time.perf_counter() - start)
    steps.synchronize()
    # The same without reading the loss, so that steps can overlap; the better time counts.
    start = time.perf_counter()
    for _ in range(count):
        steps.step()
    steps.synchronize()
    free_running = (time.perf_counter() - start) / count
    return {"step_ms": min(statistics.median(seconds), free_running) * 1e3,
            "free_running_ms": free_running * 1e3, "warmup_s": round(warm - begin, 1),
            "first_loss": first, "last_loss": last}


def worker(args):
    try:
        import torch
    except ImportError as error:
        no_torch(f"there is no PyTorch: {error}")
    cuda = args.torch_device == "cuda"
    if cuda and not torch.cuda.is_available():
        no_torch(f"PyTorch {torch.__version__} sees no CUDA device")
    from torch_models import TorchSteps
    tf32 = args.precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    batch = args.batch or BATCHES[args.model]
    steps = TorchSteps(args.model, batch, args.precision, args.mode, args.torch_device)
    times = measure(steps, max(args.warmup, LONG_WARMUP.get(args.mode, 1)), args.steps)
    memory = {"peak_bytes": torch.cuda.max_memory_allocated(),
              "reserved_bytes": torch.cuda.max_memory_reserved()} if cuda else {}
    print(json.dumps({
        "bench": "torch_step", "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(), "model": args.model, "precision": args.precision,
        "mode": args.mode, "batch": batch, "parameters": steps.parameters,
        "samples_per_second": batch / times["step_ms"] * 1e3, **times, **memory}))


# --- Running programs ----------------------------------------------------------------------------------


class Result(NamedTuple):
    """What a run left: its last JSON line or None, its exit code, and why it failed or None."""

    line: object
    code: object
    failure: object


def run(command, limit, environment=None):
    """Runs a command for at most `limit` seconds. Also what it has started is ended, and if this script is
    interrupted."""
    processes = Processes(tempfile.gettempdir())
    try:
        outcome = processes.run(command, limit, environment)
    finally:
        processes.end_all()
    text = "\n".join(line for line in outcome.output.splitlines() if line[:1] != "{").strip()[-500:]
    if outcome.stopped:
        return Result(None, None, f"{outcome.stopped}; {text}".rstrip("; "))
    line = next(reversed(json_lines(outcome.output)), None)
    code = outcome.code
    if code == 0 and line is not None:
        return Result(line, code, None)
    reason = (line or {}).get("failure") or (code and text) or "no line of JSON"
    return Result(line, code, f"exit code {code}: {reason}")


# --- The comparison ------------------------------------------------------------------------------------


def run_file(model):
    """What bench_gpu_step takes as --model: a name of the zoo, or a run file of bench/, which a bundle has in
    source/bench."""
    for folder in (HERE.parent, HERE.parent / "source" / "bench"):
        path = folder / f"{model}.textproto"
        if path.exists():
            return str(path)
    return model


def machine():
    """Card, driver and clocks as nvidia-smi prints them; None without it."""
    result = {}
    query = "name,driver_version,clocks.max.sm,power.limit"
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    values = done.stdout.strip().splitlines()
    if done.returncode == 0 and values:
        result = dict(zip(("card", "driver", "max_clock", "power_limit"), values[0].split(", ")))
    return result or None


class Comparison:
    """The runs of one model in one precision."""

    def __init__(self, args, model, precision, deadline):
        self.args, self.model, self.precision, self.deadline = args, model, precision, deadline
        self.batch = args.batch or BATCHES[model]
        self.modes = args.modes.split(",")
        self.lines = {name: [] for name in ("cadre", *self.modes)}
        self.failures = {}
        self.codes = {}

    def command(self, name):
        shared = ["--batch", str(self.batch), "--steps", str(self.args.steps), "--warmup",
                  str(self.args.warmup), "--precision", self.precision]
        if name == "cadre":
            return [f"{self.args.programs}/bench_gpu_step", "--model",
                    run_file(self.model), *shared]
        return [sys.executable, HERE / "gpu_step.py", "--worker", "--mode", name, "--model", self.model,
                "--torch-device", self.args.torch_device, *shared]

    def environment(self, name):
        environment = dict(os.environ)
        if name == "cadre" and self.args.libraries:
            folders = [self.args.libraries, environment.get("LD_LIBRARY_PATH", "")]
            environment["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
        if name != "cadre" and self.args.inductor_cache:
            environment["TORCHINDUCTOR_CACHE_DIR"] = self.args.inductor_cache
        return environment

    def measure(self, name):
        """One run, unless an earlier one failed. Prints its line."""
        if name in self.failures:
            return
        limit = self.args.autotune_limit if name == "max-autotune" else self.args.limit
        if self.deadline:
            limit = min(limit, self.deadline - time.monotonic())
        if limit < 1:
            # A repetition that is omitted is not a failure; `runs` counts those that there were.
            if not self.lines[name]:
                self.failures[name] = "no time was left"
            return
        result = run(self.command(name), limit, self.environment(name))
        if result.line is not None:
            print(json.dumps(result.line), flush=True)
        if result.line is not None and "samples_per_second" in result.line:
            self.lines[name].append(result.line)
        if result.failure:
            self.failures[name] = result.failure
            self.codes[name] = result.code
            print(f"gpu_step: {self.model} {self.precision} {name}: {result.failure}",
                  file=sys.stderr, flush=True)
        if result.code == NO_TORCH and name != "cadre":
            for mode in self.modes:
                self.failures.setdefault(mode, result.failure)

    def run(self):
        self.measure("cadre")
        # Without a GPU or a plan there is nothing to compare.
        if self.codes.get("cadre") in (NO_GPU, NO_PLAN):
            return
        for _ in range(self.args.rounds):
            for mode in self.modes:
                self.measure(mode)
            self.measure("cadre")

    def medians(self, field):
        return {name: round(statistics.median(line[field] for line in runs), 3)
                for name, runs in self.lines.items() if runs and field in runs[0]}

    def mismatch(self):
        """Names the networks of PyTorch that are not Cadre's, or None."""
        counts = self.medians("parameters")
        ours = counts.get("cadre")
        others = [f"{count:.0f} with {name}" for name, count in counts.items() if count != ours]
        if ours is None or not others:
            return None
        return f"{self.model}: Cadre trains {ours:.0f} parameters, PyTorch {', '.join(others)}"

    def result(self, card):
        speeds = self.medians("samples_per_second")
        others = {name: speed for name, speed in speeds.items() if name != "cadre"}
        best = max(others, key=others.get) if others else None
        line = {"bench": "gpu_step_vs_torch", "model": self.model, "precision": self.precision,
                "batch": self.batch, "runs": {name: len(runs) for name, runs in self.lines.items()}}
        mismatch = self.mismatch()
        if mismatch:
            line["refused"] = mismatch
        elif best and "cadre" in speeds:
            line["ratio"] = round(speeds["cadre"] / others[best], 3)
            line["against"] = best
        line["samples_per_second"] = speeds
        for field in ("step_ms", "peak_bytes", "parameters"):
            line[field] = self.medians(field)
        if self.lines["cadre"]:
            ours = self.lines["cadre"][-1]
            # The first and the last run of Cadre show whether the card became slower meanwhile.
            line["cadre_step_ms"] = [run["step_ms"] for run in self.lines["cadre"]]
            line["cadre"] = {key: value for key, value in ours.items()
                             if key not in ("bench", "model", "precision", "batch", "parameters")}
        for runs in (self.lines[mode] for mode in self.modes if self.lines[mode]):
            line["pytorch"] = {key: runs[-1][key] for key in ("device", "torch", "cuda", "cudnn")}
        line["machine"] = card
        if self.failures:
            line["failures"] = self.failures
        return line


def exit_code(comparisons):
    codes = {c.codes.get("cadre", 1) for c in comparisons if "cadre" in c.failures}
    if any(c.mismatch() for c in comparisons):
        codes.add(1)
    return 0 if not codes else NO_PLAN if codes == {NO_PLAN} else 1


def main():
    args = parse()
    if args.worker:
        worker(args)
        return
    # SIGTERM raises SystemExit here, so that the current run is killed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    deadline = time.monotonic() + args.seconds if args.seconds > 0 else None
    card = machine()
    comparisons = []
    for precision in args.precisions.split(","):
        for model in args.models.split(","):
            comparison = Comparison(args, model, precision, deadline)
            comparison.run()
            if comparison.codes.get("cadre") == NO_GPU:
                sys.exit(NO_GPU)
            print(json.dumps(comparison.result(card)), flush=True)
            comparisons.append(comparison)
    sys.exit(exit_code(comparisons))


if __name__ == "__main__":
    main()
