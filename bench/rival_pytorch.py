#!/usr/bin/env python3
"""Compares training steps of Cadre and of PyTorch in its fastest configuration on the CPU.

Each configuration of PyTorch is a precision (fp32, bf16 autocast), a memory layout (default, channels last), a way
to run (eager; torch.compile, default or max-autotune) and an implementation of SGD (foreach, fused). All are tried
once, in short runs; the fastest of each precision are then run alternately with bench_engine, --rounds times, and
medians are compared. Each run is a process of its own. Prints one JSON line for each model and number of threads.

    bench/rival_pytorch.py --models lenet,gpt --threads 1,2
    bench/rival_pytorch.py --models gpt --precisions fp32 --modes eager --finalists 1
    bench/rival_pytorch.py --worker "fp32 channels-last eager fused" --models resnet18 --threads 2     PyTorch alone

`ratio` is samples per second of Cadre divided by those of the fastest PyTorch of the same precision; `ratio_best`
compares with the fastest of all. `spread` is the interval from the smallest to the largest ratio of one round.
`ratio_cpu` divides the processor time of a step of that PyTorch by that of Cadre: with one thread, other load of the
machine disturbs it less. `peak_resident_bytes` are those of the processes. A result also has the processor, its
instruction sets for products, and the peaks that PyTorch reaches on it: of products of square matrices in fp32 and
bf16, and of a memory copy, with this number of threads. Configurations that fail, or that torch.compile does not
compile as one graph, are listed with their error.

Requires PyTorch (the CPU build of torch 2.13.0), in this Python or in the one that --python names.
"""
import itertools
import json
import os
import pathlib
import resource
import statistics
import sys
import time

from gpu.gpu_step import run, run_file
from runner import parser, report

HERE = pathlib.Path(__file__).resolve().parent

BATCHES = {"lenet": 64, "alexnet": 16, "vgg11": 8, "vgg16": 4, "resnet18": 16, "resnet50": 8,
           "inception-v3": 4, "gpt": 16, "gpt2-small": 1, "attention-4096": 4}

def parse():
    p = parser(__doc__)
    p.add_argument("--python", default=sys.executable, help="Python that has PyTorch")
    p.add_argument("--models", default="lenet,alexnet,resnet18,gpt", help="separated by commas")
    p.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    p.add_argument("--batch", type=int, help="samples of a step; default: by model")
    p.add_argument("--precisions", default="fp32,bf16")
    p.add_argument("--layouts", default="default,channels-last")
    p.add_argument("--modes", default="eager,compile,max-autotune")
    p.add_argument("--optimizers", default="foreach,fused")
    p.add_argument("--recompute", action="store_true",
                   help="both recompute the activations of blocks; PyTorch those of gpt and gpt2-small")
    p.add_argument("--finalists", type=int, default=2,
                   help="configurations of each precision that take part in the rounds")
    p.add_argument("--rounds", type=int, default=5, help="runs of each program")
    p.add_argument("--steps", type=int, default=5, help="timed steps of a run")
    p.add_argument("--warmup", type=int, default=2, help="steps before these")
    p.add_argument("--limit", type=float, default=600, help="seconds of one run")
    p.add_argument("--worker", metavar="CONFIGURATION",
                   help="run PyTorch once, such as 'fp32 channels-last eager fused', on one model and print one line")
    p.add_argument("--peaks", action="store_true", help="print the peaks of the processor")
    return p.parse_args()


# --- PyTorch -------------------------------------------------------------------------------------------


def set_threads(torch, threads):
    torch.set_num_threads(threads)
    # Parallel operators are not used by these networks; their pool would only take part in the noise.
    torch.set_num_interop_threads(1)


def worker(args):
    import torch
    from torch_models import TorchSteps

    set_threads(torch, int(args.threads))
    model, batch = args.models, args.batch or BATCHES[args.models]
    precision, layout, mode, optimizer = args.worker.split()
    steps = TorchSteps(model, batch, precision, mode, layout=layout, optimizer=optimizer, fullgraph=True,
                       recompute=args.recompute)
    first = [steps.step().item() for _ in range(max(1, args.warmup))][0]
    seconds, processor_seconds = [], []
    for _ in range(args.steps):
        start, processor_start = time.perf_counter(), time.process_time()
        last = steps.step().item()
        seconds.append(time.perf_counter() - start)
        processor_seconds.append(time.process_time() - processor_start)
    median = statistics.median(seconds)
    report(args, "torch_step", torch=torch.__version__, model=model, batch=batch, threads=torch.get_num_threads(),
           precision=precision, layout=layout, mode=mode, optimizer=optimizer, parameters=steps.parameters,
           samples_per_second=batch / median, step_ms=median * 1e3,
           step_cpu_ms=statistics.median(processor_seconds) * 1e3,
           peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, first_loss=first,
           last_loss=last)


def best_rate(work, run):
    """Work divided by the shortest of several runs."""
    run()
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return work / min(seconds)


def peaks(args):
    import torch

    set_threads(torch, int(args.threads))
    side, elements = 1536, 1 << 25
    result = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = torch.rand(side, side).to(dtype), torch.rand(side, side).to(dtype)
        c = torch.empty(side, side, dtype=dtype)
        rate = best_rate(2 * side**3, lambda a=a, b=b, c=c: torch.mm(a, b, out=c))
        result[f"peak_gflops_{name}"] = round(rate / 1e9, 1)
    source, target = torch.rand(elements), torch.empty(elements)
    # A copy reads and writes.
    result["copy_gbs"] = round(best_rate(8 * elements, lambda: target.copy_(source)) / 1e9, 1)
    print(json.dumps(result))


# --- The comparison ------------------------------------------------------------------------------------


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        fields = dict(reversed([line.split("\t", 1) for line in file if "\t" in line]))
    return {"cores": len(os.sched_getaffinity(0)),
            "family_model": [fields.get(name, "").strip(": \t\n") for name in ("cpu family", "model")]}


class Comparison:
    """One model with one number of threads. Programs are named by their precision, layout, mode and optimizer; Cadre by
    "cadre" and its precision."""

    def __init__(self, args, model, threads):
        self.args, self.model, self.threads = args, model, threads
        self.precisions = args.precisions.split(",")
        self.batch = args.batch or BATCHES[model]
        # OpenMP threads of both programs wait by spinning, as on a machine of their own.
        self.environment = {**os.environ, "GOMP_SPINCOUNT": "10000", "OMP_NUM_THREADS": str(threads)}
        self.failures = {}

    def run(self, *command):
        """The last line of a program, or None and the reason why there is none."""
        result = run([*map(str, command), "--threads", str(self.threads)], self.args.limit, self.environment)
        return (None if result.failure else result.line), result.failure

    def torch(self, *flags):
        return self.run(self.args.python, HERE / "rival_pytorch.py", *flags)

    def measure(self, name):
        """The line of one program; None, once it has failed."""
        if name in self.failures:
            return None
        shared = ["--batch", self.batch, "--steps", self.args.steps, "--warmup", self.args.warmup,
                  *(["--recompute"] if self.args.recompute else [])]
        if name.startswith("cadre "):
            line, failure = self.run(f"{self.args.bin}/bench_engine", "--model", run_file(self.model), "--precision",
                                     name.split()[1], *shared)
        else:
            line, failure = self.torch("--worker", name, "--models", self.model, *shared)
        if failure:
            self.failures[name] = failure
        return line

    def finalists(self):
        """The fastest configurations of each precision, and the speeds of all, after one short run of each."""
        args, speeds = self.args, {}
        # Text has no images.
        layouts = "default" if self.model.startswith(("gpt", "attention")) else args.layouts
        words = (args.precisions, layouts, args.modes, args.optimizers)
        for name in map(" ".join, itertools.product(*(word.split(",") for word in words))):
            if line := self.measure(name):
                speeds[name] = line["samples_per_second"]
        ranking = sorted(speeds, key=speeds.get, reverse=True)
        chosen = [[name for name in ranking if name.startswith(p)][:args.finalists] for p in self.precisions]
        return sum(chosen, []), {name: round(speeds[name], 2) for name in ranking}

    def result(self):
        args = self.args
        peak, failure = self.torch("--peaks")
        if failure:
            sys.exit(f"rival_pytorch: {args.python} does not run PyTorch: {failure}")
        chosen, tried = self.finalists()
        if not chosen:
            sys.exit(f"rival_pytorch: no configuration of PyTorch runs: {self.failures}")
        lines = {name: [] for name in (*(f"cadre {p}" for p in self.precisions), *chosen)}
        for _ in range(args.rounds):
            for name in lines:
                if line := self.measure(name):
                    lines[name].append(line)

        def all_of(field):
            return {name: [line[field] for line in runs] for name, runs in lines.items()}

        speeds, processor_ms = all_of("samples_per_second"), all_of("step_cpu_ms")
        medians = {name: statistics.median(values) for name, values in speeds.items() if len(values) == args.rounds}
        theirs = {name: value for name, value in medians.items() if name in chosen}
        line = {**processor(), **peak, "model": self.model, "batch": self.batch, "threads": self.threads,
                "rounds": args.rounds, "recompute": args.recompute}
        for precision in self.precisions:
            cadre = f"cadre {precision}"
            same = {n: v for n, v in theirs.items() if n.startswith(precision)}
            if cadre not in medians or not same:
                continue
            line["instruction_sets"] = lines[cadre][0]["instruction_sets"]
            best, best_of_all = max(same, key=same.get), max(theirs, key=theirs.get)
            rounds = [a / b for a, b in zip(speeds[cadre], speeds[best], strict=True)]
            cpu = [statistics.median(processor_ms[name]) for name in (best, cadre)]
            line[precision] = {"ratio": round(medians[cadre] / same[best], 3), "against": best,
                               "spread": [round(min(rounds), 3), round(max(rounds), 3)],
                               "ratio_cpu": round(cpu[0] / cpu[1], 3),
                               "ratio_best": round(medians[cadre] / theirs[best_of_all], 3),
                               "against_best": best_of_all}
        line["samples_per_second"] = {name: round(value, 2) for name, value in medians.items()}
        for field, values in (("all", speeds), ("step_cpu_ms", processor_ms)):
            line[field] = {name: [round(v, 2) for v in series] for name, series in values.items()}
        memory, parameters = ({name: values[-1] for name, values in all_of(field).items() if values}
                              for field in ("peak_resident_bytes", "parameters"))
        line |= {"peak_resident_bytes": memory, "tried": tried}
        if len(set(parameters.values())) > 1:
            line["parameters"] = parameters
        return line | ({"failures": self.failures} if self.failures else {})


def main():
    args = parse()
    if args.worker:
        return worker(args)
    if args.peaks:
        return peaks(args)
    models = args.models.split(",")
    for model in models:
        if model not in BATCHES:
            sys.exit(f"rival_pytorch: no model '{model}'; there are {', '.join(BATCHES)}")
    for model in models:
        for threads in args.threads.split(","):
            report(args, "rival_pytorch", **Comparison(args, model, int(threads)).result())
    return None


if __name__ == "__main__":
    main()
