#!/usr/bin/env python3
"""Compares predicted with measured step times of plans.

Runs `bench_step --what plan-error` for groups of 1, 2 and 4 ranks, each rank on a host of its own (a network
namespace) behind a link of the given rate, and prints its lines and then a table:

    sudo bench/plan_error.py --bin build/bin --output plan-error.jsonl

Every line of the output is one plan of one model on one group. The last line is a summary: the median and the
largest absolute error, and by how much the planner's choices were slower than the fastest plans.
"""
import json
import os
import statistics

from hosts import run_ranks
from runner import numbers, parser, read_lines, report

MODELS = "lenet:256,mlp:256,alexnet:32,resnet18:16,vgg11:8"


def parse():
    p = parser(__doc__)
    p.add_argument("--models", default=MODELS, help="model:batch, comma separated")
    p.add_argument("--ranks", type=numbers, default=[1, 2, 4], help="sizes of groups")
    p.add_argument("--micro-batches", type=int, default=1, help="of a step; more than 1: also pipelines")
    p.add_argument("--strategies", default="", help="only these, such as batch,auto; pipelines and placed plans follow"
                   " their own flags")
    p.add_argument("--placed", action="store_true", help="also the plan that places each layer on one rank")
    p.add_argument("--rate", default="1gbit", help="rate of every host's link, separated by commas")
    p.add_argument("--seconds", type=float, default=4, help="measured time of each plan")
    p.add_argument("--table", default="", help="print the table of an existing file and run nothing")
    return p.parse_args()


def command(args, ranks, rate):
    return [f"{args.bin}/bench_step", "--what", "plan-error", "--models", args.models, "--link", rate,
            "--micro_batches", args.micro_batches, f"--placed={str(args.placed).lower()}", "--strategies",
            args.strategies, "--cores", os.cpu_count() / ranks if ranks > 1 else 0, "--seconds", args.seconds]


def measure(args):
    return [report(args, **line) for rate in args.rate.split(",") for ranks in args.ranks
            for line in run_ranks(ranks, rate, command(args, ranks, rate))]


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
    show(read_lines(args.table) if args.table else measure(args))


if __name__ == "__main__":
    main()
