#!/usr/bin/env python3
"""From how many workers on splitting a model reaches an accuracy sooner than more data parallelism (Pal et al. 2019).

W workers train on W times --batch samples a step (`data`), or two of them share the model and --batch samples
(`hybrid`: W / 2 data-parallel workers of two ranks each). Larger steps need more epochs. For each W and both ways the
program prints a JSON line with the epochs to the target, the time of a step and their product:

    sudo bench/crossover.py --bin build/bin --target 0.88 --folder crossover --output crossover.jsonl

Epochs are measured: `cadre measure-epochs` trains to the target with the steps of 1, 2, 4, ... workers. It continues
with the table in --folder if it was interrupted. Steps of up to --measured ranks are measured, each rank on a host (a
network namespace) and a core of its own behind a link of --rate; steps of more ranks are predicted from the measured
times of layers (`cadre probe`) and that link (`step` states which; `predicted_step_ms` is always given). The hybrid
way has the plan that the planner chooses for the step of W / 2 workers. The last line has the smallest W from which on
hybrid is faster, up to --measured ranks and beyond, and beside it the crossover of `cadre plan --epochs`, which may
also divide a step among more than two ranks for each worker. Steps need a quiet machine, epochs do not. Requires root;
see bench/hosts.py.
"""
import json
import os
import re
import subprocess

from hosts import bits_per_second, run_ranks
from runner import numbers, parser, report

FOLDER = os.path.dirname(os.path.abspath(__file__))


def parse():
    p = parser(__doc__)
    p.add_argument("--run", default=f"{FOLDER}/crossover.textproto", help="run file")
    p.add_argument("--target", type=float, default=0.88, help="test accuracy")
    p.add_argument("--batch", type=int, default=256, help="samples of a step of one worker")
    p.add_argument("--workers", type=numbers, default=[1, 2, 4, 8],
                   help="numbers of workers; each even one needs its half")
    p.add_argument("--learning-rate", default="linear", help="how the rate follows the batch: linear, sqrt, none")
    p.add_argument("--max-epochs", type=int, default=20, help="of a training")
    p.add_argument("--samples", type=int, default=60000, help="of an epoch")
    p.add_argument("--rate", default="1gbit", help="rate of every host's link")
    p.add_argument("--alpha", type=float, default=50e-6, help="seconds per message, for predictions")
    p.add_argument("--measured", type=int, default=2, help="ranks whose steps are measured, at least 1")
    p.add_argument("--seconds", type=float, default=10, help="measured time of a plan")
    p.add_argument("--folder", default="crossover", help="folder of the table of epochs and the profile")
    return p.parse_args()


def cadre(args, *words):
    result = subprocess.run([f"{args.bin}/cadre", *map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout


def measure_epochs(args, table):
    """Epochs by number of workers; numbers that do not reach the target are left out."""
    cadre(args, "measure-epochs", args.run, "--target", args.target, "--workers", ",".join(map(str, args.workers)),
          "--batch", args.batch, "--rate", args.learning_rate, "--max-epochs", args.max_epochs, "-O", table)
    with open(table, encoding="utf-8") as file:
        entries = re.findall(r"entry\s*{(.*?)}", file.read(), re.DOTALL)
    epochs = {}
    for entry in entries:
        fields = dict(re.findall(r"(\w+): (\S+)", entry))
        if fields.get("reached") == "true":
            epochs.setdefault(int(fields["workers"]), []).append(float(fields["epochs"]))
    return {workers: sum(each) / len(each) for workers, each in epochs.items()}


def write_profile(args, path):
    """A profile of as many hosts of one worker as are needed, connected at --rate."""
    text = cadre(args, "probe", args.run, "--batch", args.batch, "--threads", 1, "--fresh")
    hosts = max(args.workers)
    device = re.search(r'device: "([^"]*)"', text).group(1)
    text = re.sub(r"(?ms)^(host|default_link|link) {.*?^}\n", "", text)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'{text}host {{ name: "host" count: {hosts} workers: 1 device: "{device}" }}\n'
                   f"default_link {{ alpha: {args.alpha} beta: {8 / bits_per_second(args.rate)} }}\n")


def plan(args, profile, workers, batch, *flags):
    return json.loads(cadre(args, "plan", args.run, "--workers", workers, "--batch", batch, "--profile", profile,
                            "--nosensitivity", "-o", "json", *flags))


def predict(args, profile, workers, batch, strategy):
    found = plan(args, profile, workers, batch, "--strategy", strategy)
    placed = any(layer["at"] for layer in found["layers"])
    return {"predicted_step_ms": round(found["step_seconds"] * 1e3, 3),
            "mesh": " ".join(f"{axis}={size}" for axis, size in found["mesh"].items()) + (" placed" if placed else "")}


def measure_step(args, ranks, batch, strategy):
    """Measured and predicted milliseconds of the plan that is predicted to be the fastest."""
    command = [f"{args.bin}/bench_step", "--what", "plan-error", "--models", f"{args.run}:{batch}", "--strategies",
               strategy, "--cores", 1 if ranks > 1 else 0, "--seconds", args.seconds, "--link", args.rate]
    lines = run_ranks(ranks, args.rate, command, pinned=True)
    plans = [line for line in lines if line["bench"] == "plan_error"]
    best = min(plans, key=lambda line: line["predicted"]["step_ms"])
    return {"step": "measured", "step_ms": best["measured"]["step_ms"],
            "predicted_step_ms": best["predicted"]["step_ms"],
            "mesh": best["mesh"] + (" placed" if best["placed"] else "")}


def result(args, profile, epochs, workers, way):
    batch_workers = workers if way == "data" else workers // 2
    batch = batch_workers * args.batch
    strategy = "batch" if way == "data" else "auto"
    line = {"model": os.path.basename(args.run), "target": args.target, "rate": args.rate, "workers": workers,
            "way": way, "batch": batch, "epochs": epochs.get(batch_workers)}
    if workers > args.measured:
        predicted = predict(args, profile, workers, batch, strategy)
        line.update({"step": "predicted", "step_ms": predicted["predicted_step_ms"], **predicted})
    else:
        line.update(measure_step(args, workers, batch, strategy))
    if line["epochs"]:
        line["seconds"] = round(line["epochs"] * (args.samples // batch) * line["step_ms"] * 1e-3, 2)
    return line


def crossover(lines):
    """The smallest number of workers from which on hybrid is faster."""
    seconds = {(line["workers"], line["way"]): line.get("seconds") for line in lines}
    found = None
    for workers in sorted({line["workers"] for line in lines if line["way"] == "hybrid"}):
        data, hybrid = seconds[workers, "data"], seconds[workers, "hybrid"]
        faster = hybrid is not None and (data is None or hybrid < data)
        found = (found or workers) if faster else None
    return found


def main():
    args = parse()
    os.makedirs(args.folder, exist_ok=True)
    table, profile = f"{args.folder}/epochs.textproto", f"{args.folder}/hosts.profile"
    epochs = measure_epochs(args, table)
    write_profile(args, profile)
    lines = [report(args, "crossover", **result(args, profile, epochs, workers, way)) for workers in args.workers
             for way in (("data", "hybrid") if workers % 2 == 0 else ("data",))]
    forecast = plan(args, profile, max(args.workers), args.batch * max(args.workers), "--epochs", table, "--samples",
                    args.samples)["target"]
    measured = [line for line in lines if line["workers"] <= args.measured]
    report(args, "crossover_workers", measured=crossover(measured), with_predicted_steps=crossover(lines),
           cadre_plan=forecast["crossover_workers"], cadre_plan_gain=forecast["gain"],
           cadre_plan_choices=forecast["choices"])


if __name__ == "__main__":
    main()
