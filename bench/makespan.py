#!/usr/bin/env python3
"""Executes the diamond of Pal et al. 2019 and pipelines of known times, and compares them with the theory.

Runs bench_makespan with each rank on a host of its own (a network namespace; see hosts.py) and prints its JSON lines
with `wanted` and `error`:

    sudo bench/makespan.py --bin build/bin --output makespan.jsonl

The diamond a -> {b, c} -> d, with times 2, 4, 3 and 2, has two hosts whose link needs x units for the tensor of an
edge, x = 0 to 4. `wanted_units` of a step is twice the published makespan, because backward repeats forward.
GPT has four stages of equal times; backward takes twice as long as forward. `wanted_idle` is the bubble of the formula,
(S - 1) / (m + S - 1) of a step, for m micro-batches; `idle` is measured on each rank.
"""
import argparse
import json
import os
import subprocess
import sys

from hosts import Hosts

FOLDER = os.path.dirname(os.path.abspath(__file__))
EDGE_BITS = 8 * 4 * 1024 * 1024
FAST = 10_000_000_000
MAKESPANS = (8, 9, 10, 11, 11)
STAGES = 4


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="build/bin", help="folder of bench_makespan")
    p.add_argument("--unit-ms", type=float, default=100, help="milliseconds of a unit of the diamond")
    p.add_argument("--pass-ms", type=float, default=50, help="milliseconds of a forward pass of a stage")
    p.add_argument("--micro-batches", default="2,4,8,16", help="of the pipelines")
    p.add_argument("--output", default="", help="file for the JSON lines; empty: none")
    return p.parse_args()


def run(args, ranks, bits, *flags):
    """The line of rank 0 of a group whose hosts have links of `bits` per second."""
    names = [str(rank) for rank in range(ranks)]
    # No packet is lost, so that a message takes its bytes divided by the rate.
    with Hosts(names, f"{round(bits / 1000)}kbit", queue_ms=2000) as hosts:
        peers = ",".join(f"{hosts.address(name)}:7100" for name in names)
        command = [f"{args.bin}/bench_makespan", "--peers", peers, "--shared_memory=false", *map(str, flags)]
        processes = [hosts.start(name, command + ["--rank", name], stdout=subprocess.PIPE, text=True)
                     for name in names]
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit(f"a group of {ranks} ranks failed")
        return json.loads(outputs[0])


def diamond(args):
    for edge, makespan in enumerate(MAKESPANS):
        bits = EDGE_BITS / (edge * args.unit_ms * 1e-3) if edge else FAST
        line = run(args, 2, bits, "--model", f"{FOLDER}/makespan/diamond.textproto", "--unit_ms", args.unit_ms,
                   "--edge", edge)
        line["wanted_units"] = 2 * makespan
        line["error"] = round(line["step_units"] / line["wanted_units"] - 1, 4)
        yield line


def pipelines(args):
    for micro_batches in map(int, args.micro_batches.split(",")):
        line = run(args, STAGES, FAST, "--model", f"{FOLDER}/makespan/gpt.textproto", "--times", "attention:1:2",
                   "--unit_ms", args.pass_ms, "--micro_batches", micro_batches)
        line["wanted_units"] = 3 * (micro_batches + STAGES - 1)
        line["error"] = round(line["step_units"] / line["wanted_units"] - 1, 4)
        line["wanted_idle"] = round((STAGES - 1) / (micro_batches + STAGES - 1), 4)
        yield line


def main():
    args = parse()
    with open(args.output or os.devnull, "w", encoding="utf-8") as output:
        for measure in (diamond, pipelines):
            for line in measure(args):
                text = json.dumps(line)
                print(text, flush=True)
                output.write(text + "\n")


if __name__ == "__main__":
    main()
