#!/usr/bin/env python3
"""Tests the advice of the discrepancy measure on the number of groups and of steps between averages.

Trains one small network on Fashion-MNIST with 1, 2, 4, ... groups (G) that average every 1, 4, 16, ...
steps (H), every run over as many epochs, by `cadre local` with one worker in each group, and compares
the test accuracy of each with that of synchronous SGD at equal epochs. Prints one JSON line for each
run and, last, two verdicts:

    bench/discrepancy_sweep.py --bin build/bin --output discrepancy.jsonl

The first verdict compares with one group that has the same batch in a step, as Lee et al. 2020 do: with more
groups each takes fewer steps in an epoch. The second compares with the same groups at H = 1. Averaging after
every step is synchronous SGD on the global batch, G times as large, so only the cost of drift is left.

A point (G, H) is recommended if the status of the run recommends it at the end ("the groups agree"): its
smoothed discrepancy is at most 1, and H is within the bound for the number of steps. A verdict counts how many
of these points keep their accuracy within --bound. It also counts how many do not, of the points that are one
step beyond them (more groups, or the next H) and not recommended. Accuracies are means over seeds; `spread` is
the largest difference between two seeds of one point; smaller differences are not significant.
"""
import itertools
import json
import re
import statistics

from runner import numbers, parser, read_lines, report, train_local

SPEC = """
name: "discrepancy-g{groups}-h{steps}"
model {{
  input {{ channels: 1 height: 28 width: 28 }}
  layer {{ name: "conv1" convolution {{ out_channels: 8 kernel: 5 padding: 2 }} }}
  layer {{ name: "relu1" relu {{}} }}
  layer {{ name: "pool1" max_pool {{ kernel: 2 }} }}
  layer {{ name: "conv2" convolution {{ out_channels: 16 kernel: 5 }} }}
  layer {{ name: "relu2" relu {{}} }}
  layer {{ name: "pool2" max_pool {{ kernel: 2 }} }}
  layer {{ name: "fc1" fully_connected {{ out_features: 84 }} }}
  layer {{ name: "relu3" relu {{}} }}
  layer {{ name: "fc2" fully_connected {{ out_features: 10 }} }}
  layer {{ name: "loss" softmax_cross_entropy {{}} }}
}}
data {{
  idx {{
    train_images: "{data}/train-images-idx3-ubyte.gz"
    train_labels: "{data}/train-labels-idx1-ubyte.gz"
    test_images: "{data}/t10k-images-idx3-ubyte.gz"
    test_labels: "{data}/t10k-labels-idx1-ubyte.gz"
    mean: 0.2860
    stddev: 0.3530
  }}
}}
batch_per_group: {batch}
optimizer {{ sgd {{ momentum: {momentum} weight_decay: 5e-4 }} }}
schedule {{ base_rate: {rate} warmup_steps: {warmup} {decay} }}
{averaging}
cluster {{ groups: {groups} ranks_per_group: 1 }}
stop {{ epochs: {epochs} }}
evaluation {{ every_epochs: 1 }}
seed: {seed}
"""
DECAY = {"cosine": "cosine { final_fraction: 0.01 }", "constant": ""}
FACTOR = {"none": lambda g: 1, "sqrt": lambda g: g**0.5, "linear": lambda g: g}


def parse():
    p = parser(__doc__)
    p.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="folder of the data")
    p.add_argument("--groups", type=numbers, default=[1, 2, 4, 8], help="G, comma separated")
    p.add_argument("--steps", type=numbers, default=[1, 4, 16, 64, 256], help="H, comma separated")
    p.add_argument("--seeds", type=numbers, default=[1], help="separated by commas")
    p.add_argument("--epochs", type=int, default=6, help="of every run, over all groups together")
    p.add_argument("--batch", type=int, default=64, help="samples of a group's step")
    p.add_argument("--rate", type=float, default=0.02, help="learning rate of one group")
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--decay", choices=DECAY, default="cosine", help="of the rate")
    p.add_argument("--scale", choices=FACTOR, default="linear",
                   help="how the rate follows the number of groups")
    p.add_argument("--bound", type=float, default=0.005, help="accuracy that may be lost")
    return p.parse_args()


def points(args):
    """(G, H); H is 0 for a single group, which does not average."""
    yield 1, 0
    yield from itertools.product([g for g in args.groups if g > 1], args.steps)


def spec(args, groups, steps, seed):
    warmup = max(1, 100 // groups)
    return SPEC.format(groups=groups, steps=steps, seed=seed, data=args.data, batch=args.batch,
                       momentum=args.momentum, rate=args.rate * FACTOR[args.scale](groups),
                       warmup=warmup, decay=DECAY[args.decay], epochs=args.epochs,
                       averaging=f"averaging {{ every_steps: {steps} }}" if steps else "")


def setting(args):
    return {name: getattr(args, name)
            for name in ("epochs", "batch", "rate", "momentum", "decay", "scale")}


def train(args, groups, steps, seed):
    """The line of one run."""
    run, progress = train_local(args, spec(args, groups, steps, seed), f"{groups} groups, every {steps} steps")
    drift = run["discrepancy"] or {}
    # The values in the progress lines, which appear about every two seconds.
    seen = [float(x) for x in re.findall(r"discrepancy ([0-9.e+-]+)", progress)]
    return report(args, "discrepancy", groups=groups, steps=steps, seed=seed, **setting(args),
                  accuracy=run["test_accuracy"], loss=run["test_loss"], seconds=run["seconds"],
                  group_steps=run["steps"], rounds=drift.get("rounds", 0), discrepancy=drift.get("smoothed"),
                  newest=drift.get("newest"), seen=seen, recommendation=drift.get("recommendation", ""))


def measure(args):
    """The line of each point and seed; runs that --output has with the same setting are not run again."""
    recorded = {(l["groups"], l["steps"], l["seed"]): l for l in read_lines(args.output)
                if l.get("bench") == "discrepancy" and all(l.get(k) == v for k, v in setting(args).items())}
    return [recorded.get((*point, seed)) or train(args, *point, seed) for point in points(args) for seed in args.seeds]


class Point:
    """The runs of one (G, H)."""

    def __init__(self, lines):
        accuracies = [l["accuracy"] for l in lines]
        self.accuracy = statistics.mean(accuracies)
        self.spread = max(accuracies) - min(accuracies)
        known = [l["discrepancy"] for l in lines if l["discrepancy"] is not None]
        self.discrepancy = statistics.mean(known) if known else None
        agree = [l["recommendation"].startswith("the groups agree") for l in lines]
        self.recommended = sum(agree) * 2 > len(agree)


def beyond(args, table):
    """Points that are not recommended and are one step from a recommended one (or from one group)."""
    def previous(groups, steps):
        i = args.steps.index(steps)
        if i > 0:
            yield groups, args.steps[i - 1]
        fewer = [g for g in args.groups if 1 < g < groups]
        yield (max(fewer), steps) if fewer else (1, 0)

    for (groups, steps), point in table.items():
        if groups == 1 or point.recommended:
            continue
        if any(p == (1, 0) or table[p].recommended for p in previous(groups, steps)):
            yield groups, steps


# The point with which a point is compared, by the name in the verdict; None if it is the reference itself.
AGAINST = {"one group, same batch in a step": lambda g, h: (1, 0),
           "same groups, averaging every step": lambda g, h: (g, 1) if h > 1 else None}


def verdict(args, lines, against):
    runs = {}
    for line in lines:
        runs.setdefault((line["groups"], line["steps"]), []).append(line)
    table = {key: Point(seeds) for key, seeds in runs.items()}
    lost = {}
    for key, point in table.items():
        reference = AGAINST[against](*key)
        if key != (1, 0) and reference in table:
            lost[key] = table[reference].accuracy - point.accuracy
    advised = [k for k in lost if table[k].recommended]
    next_steps = [k for k in beyond(args, table) if k in lost]

    def show(keys):
        return [{"groups": g, "steps": h, "lost": round(lost[(g, h)], 4),
                 "discrepancy": table[(g, h)].discrepancy} for g, h in keys]

    within = [k for k in advised if lost[k] <= args.bound]
    losing = [k for k in next_steps if lost[k] > args.bound]
    return {"bench": "discrepancy_verdict", "against": against, **setting(args), "seeds": args.seeds,
            "accuracy_of_one_group": table[(1, 0)].accuracy, "bound": args.bound,
            "spread": max(p.spread for p in table.values()),
            "recommended": len(advised), "recommended_within": len(within),
            "beyond": len(next_steps), "beyond_lost": len(losing),
            "recommended_but_lost": show(k for k in advised if k not in within),
            "beyond_but_kept": show(k for k in next_steps if k not in losing),
            "holds": len(within) == len(advised) and len(losing) == len(next_steps)}


def main():
    args = parse()
    lines = measure(args)
    for against in AGAINST:
        print(json.dumps(verdict(args, lines, against)))


if __name__ == "__main__":
    main()
