#!/usr/bin/env python3
"""Compares training steps of Cadre and PyTorch on a GPU, run alternately on the same machine.

For each model and precision, PyTorch trains the same network with the same batch and optimizer (SGD with
momentum), channels last, eager and with torch.compile; each program runs in a process of its own, alternately
with bench_gpu_step. Every step copies a batch from host memory to the card. The median of Cadre is compared with
the better of PyTorch's two. Prints one JSON line for each model and precision.

    bench/gpu/gpu_step.py --programs build/bin                           everything
    bench/gpu/gpu_step.py --models gpt --precisions bf16 --rounds 3
    bench/gpu/gpu_step.py --worker --model resnet50 --mode compile       PyTorch alone, one line

`ratio` is samples per second of Cadre divided by those of the faster PyTorch. Without a GPU, or if PyTorch does
not find it, the exit code is 3, after a message with the reason.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

# torch_models.py is in the folder above, or in the same folder of a bundle.
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))

BATCHES = {"resnet50": 128, "vgg16": 64, "alexnet": 256, "gpt": 64}
NO_GPU = 3


def parse():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--programs", default="build/bin", help="folder of bench_gpu_step")
    p.add_argument("--libraries", help="folder of shared libraries that bench_gpu_step needs and "
                   "PyTorch must not see")
    p.add_argument("--models", default=",".join(BATCHES), help="separated by commas")
    p.add_argument("--precisions", default="bf16,tf32", help="of bf16, tf32, fp32")
    p.add_argument("--modes", default="eager,compile", help="of PyTorch")
    p.add_argument("--batch", type=int, help="samples of a step; default: by model")
    p.add_argument("--rounds", type=int, default=3, help="runs of each program")
    p.add_argument("--steps", type=int, default=20, help="timed steps of a run")
    p.add_argument("--warmup", type=int, default=6, help="steps before these")
    p.add_argument("--seconds", type=float, default=0,
                   help="time limit, after which no new run begins (0: none)")
    p.add_argument("--worker", action="store_true", help="run PyTorch on one model and print one line")
    p.add_argument("--model", default="resnet50", help="with --worker")
    p.add_argument("--precision", default="bf16", help="with --worker")
    p.add_argument("--mode", default="eager", choices=["eager", "compile"], help="with --worker")
    return p.parse_args()


def no_gpu(why):
    print(why if why.startswith("gpu_step: ") else f"gpu_step: {why}", file=sys.stderr)
    sys.exit(NO_GPU)


def worker(args):
    try:
        import torch
    except ImportError as error:
        no_gpu(f"there is no PyTorch: {error}")
    from torch_models import MODELS, random_batch
    if not torch.cuda.is_available():
        no_gpu(f"PyTorch {torch.__version__} sees no CUDA device")
    torch.manual_seed(1)
    tf32 = args.precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    batch = args.batch or BATCHES[args.model]
    net = MODELS[args.model]().cuda()
    inputs, labels = random_batch(args.model, batch)
    if inputs.dim() == 4:
        net = net.to(memory_format=torch.channels_last)
        inputs = inputs.to(memory_format=torch.channels_last)
    # In pinned host memory, as a data loader would leave them.
    inputs, labels = inputs.pin_memory(), labels.pin_memory()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9, fused=True)
    criterion = torch.nn.CrossEntropyLoss()
    run = torch.compile(net) if args.mode == "compile" else net

    def step():
        x = inputs.cuda(non_blocking=True)
        y = labels.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = criterion(run(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(args.warmup):
        first = step()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        # A step of Cadre returns the loss, so both programs wait for it.
        loss = step().item()
        seconds.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    # The same without reading the loss, so that steps can overlap; the better time counts.
    start = time.perf_counter()
    for _ in range(args.steps):
        step()
    torch.cuda.synchronize()
    free_running = (time.perf_counter() - start) / args.steps
    median = min(statistics.median(seconds), free_running)
    print(json.dumps({
        "bench": "torch_step", "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "model": args.model,
        "precision": args.precision, "mode": args.mode, "batch": batch,
        "parameters": sum(p.numel() for p in net.parameters()),
        "samples_per_second": batch / median, "step_ms": median * 1e3,
        "free_running_ms": free_running * 1e3, "first_loss": first.item(), "last_loss": loss}))


# --- The comparison ------------------------------------------------------------------------------------


def run(command, libraries=None):
    """(the last JSON line that the command prints, None), or (None, the reason why there is none)."""
    environment = dict(os.environ)
    if libraries:
        folders = [libraries, environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env=environment)
    except OSError as error:
        sys.exit(f"gpu_step: {error}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == NO_GPU:
        no_gpu(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no GPU")
    if done.returncode != 0 or not lines:
        return None, f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"
    return json.loads(lines[-1]), None


def commands(args, model, precision):
    batch = str(args.batch or BATCHES[model])
    shared = ["--batch", batch, "--steps", str(args.steps), "--warmup", str(args.warmup),
              "--model", model, "--precision", precision]
    ours = [str(pathlib.Path(args.programs) / "bench_gpu_step"), *shared]
    theirs = {mode: [sys.executable, __file__, "--worker", "--mode", mode, *shared]
              for mode in args.modes.split(",")}
    return {"cadre": ours, **theirs}


def compare(args, model, precision, deadline):
    turns = commands(args, model, precision)
    lines = {name: [] for name in turns}
    failures = {}
    for round_number in range(args.rounds):
        if round_number > 0 and deadline and time.monotonic() > deadline:
            break
        for name, command in turns.items():
            if name in failures:
                continue
            line, failure = run(command, args.libraries if name == "cadre" else None)
            if failure:
                failures[name] = failure
            else:
                lines[name].append(line)
    speeds = {name: statistics.median(line["samples_per_second"] for line in runs)
              for name, runs in lines.items() if runs}
    others = {name: speed for name, speed in speeds.items() if name != "cadre"}
    best = max(others, key=others.get) if others else None
    result = {"bench": "gpu_step_vs_torch", "model": model, "precision": precision,
              "batch": args.batch or BATCHES[model],
              "rounds": min((len(runs) for runs in lines.values() if runs), default=0)}
    if best and "cadre" in speeds:
        result["ratio"] = round(speeds["cadre"] / others[best], 3)
        result["against"] = best
    result["samples_per_second"] = {name: round(speed, 1) for name, speed in speeds.items()}
    result |= {name: runs[-1] for name, runs in lines.items() if runs}
    if failures:
        result["failures"] = failures
    return result


def main():
    args = parse()
    for model in args.models.split(","):
        if model not in BATCHES:
            sys.exit(f"gpu_step: no model '{model}'; there are {', '.join(BATCHES)}")
    if args.worker:
        worker(args)
        return
    deadline = time.monotonic() + args.seconds if args.seconds > 0 else None
    failed = False
    for precision in args.precisions.split(","):
        for model in args.models.split(","):
            if deadline and time.monotonic() > deadline:
                print(f"gpu_step: no time left for {model} in {precision}", file=sys.stderr)
                continue
            result = compare(args, model, precision, deadline)
            failed = failed or "cadre" in result.get("failures", {})
            print(json.dumps(result), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
