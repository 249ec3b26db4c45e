#!/usr/bin/env python3
"""Compares predicted with measured step times of plans.

Runs bench_plan_error for groups of 1, 2 and 4 ranks, each rank on a host of its own (a network
namespace) behind a link of the given rate, writes the output to --output and prints a table:

    sudo bench/plan_error.py --bin build/bin --output plan-error.jsonl

Every line of the output is one plan of one model on one group. The last line is a summary: the median and the
largest absolute error, and by how much the planner's choices were slower than the fastest plans.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

from hosts import Hosts

MODELS = "lenet:256,mlp:256,alexnet:32,resnet18:16,vgg11:8"


def parse():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="build/bin", help="folder of bench_plan_error")
    p.add_argument("--models", default=MODELS, help="model:batch, comma separated")
    p.add_argument("--ranks", default="1,2,4", help="sizes of groups")
    p.add_argument("--micro-batches", type=int, default=1, help="of a step; more than 1: also pipelines")
    p.add_argument("--strategies", default="", help="only these, such as batch,auto; pipelines and placed plans follow"
                   " their own flags")
    p.add_argument("--placed", action="store_true", help="also the plan that places each layer on one rank")
    p.add_argument("--rate", default="1gbit", help="rate of every host's link, separated by commas")
    p.add_argument("--seconds", type=float, default=4, help="measured time of each plan")
    p.add_argument("--output", default="", help="file for the JSON lines; empty: none")
    p.add_argument("--table", default="", help="print the table of an existing file and run nothing")
    return p.parse_args()


def run_group(args, ranks, rate):
    """The lines that rank 0 of a group prints."""
    names = [str(rank) for rank in range(ranks)]
    with Hosts(names, rate) as hosts:
        peers = ",".join(f"{hosts.address(name)}:7100" for name in names)
        cores = os.cpu_count() / ranks if ranks > 1 else 0
        processes = []
        for rank in range(ranks):
            command = [f"{args.bin}/bench_plan_error", "--rank", str(rank), "--peers", peers,
                       "--models", args.models, "--link", rate,
                       "--micro_batches", str(args.micro_batches), f"--placed={str(args.placed).lower()}",
                       "--strategies", args.strategies,
                       "--cores", str(cores), "--seconds", str(args.seconds)]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            processes.append(hosts.start(str(rank), command, stdout=out, text=True))
        try:
            for line in processes[0].stdout:
                yield json.loads(line)
        finally:
            if any([process.wait() for process in processes]):
                sys.exit(f"a group of {ranks} ranks failed")


def measure(args, output):
    """All lines; each is also written to `output` immediately."""
    lines = []
    for rate in args.rate.split(","):
        for ranks in map(int, args.ranks.split(",")):
            for line in run_group(args, ranks, rate):
                lines.append(line)
                output.write(json.dumps(line) + "\n")
                output.flush()
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return lines


def show(lines):
    plans = [l for l in lines if l["bench"] == "plan_error"]
    picks = [l for l in lines if l["bench"] == "plan_pick"]
    print("| model, batch | ranks | link | plan | mesh | predicted | measured | error |")
    print("| --- " * 8 + "|")
    for l in plans:
        print(f"| {l['model']}, {l['batch']} | {l['ranks']} | {l['link']} | {l['strategy']} | {l['mesh']} "
              f"| {l['predicted']['step_ms']:.1f} ms | {l['measured']['step_ms']:.1f} ms "
              f"| {100 * l['error']:+.1f} % |")
    print()
    print("| model | ranks | link | picked | fastest | picked / fastest |")
    print("| --- " * 6 + "|")
    for l in picks:
        print(f"| {l['model']} | {l['ranks']} | {l['link']} | {l['picked']} | {l['fastest']} "
              f"| {l['ratio']:.3f} |")
    errors = [abs(l["error"]) for l in plans]
    print(json.dumps({
        "bench": "plan_error_summary", "plans": len(plans),
        "median_error": round(statistics.median(errors), 4), "worst_error": round(max(errors), 4),
        "within_a_tenth": sum(e <= 0.1 for e in errors),
        "within_a_quarter": sum(e <= 0.25 for e in errors), "picks": len(picks),
        "worst_pick": max(l["ratio"] for l in picks),
        "picks_within_5_percent": sum(l["ratio"] <= 1.05 for l in picks)}))


def main():
    args = parse()
    if args.table:
        with open(args.table, encoding="utf-8") as file:
            show([json.loads(line) for line in file])
        return
    with open(args.output or os.devnull, "w", encoding="utf-8") as output:
        show(measure(args, output))


if __name__ == "__main__":
    main()
