#!/usr/bin/env python3
"""Executes the diamond of Pal et al. 2019 and pipelines of known times, and compares them with the theory.

Runs `bench_step --what makespan` with each rank on a host of its own (a network namespace; see hosts.py) and prints its
JSON lines with `wanted` and `error`:

    sudo bench/makespan.py --bin build/bin --output makespan.jsonl

The diamond a -> {b, c} -> d, with times 2, 4, 3 and 2, has two hosts whose link needs x units for the tensor of an
edge, x = 0 to 4. `wanted_units` of a step is twice the published makespan, because backward repeats forward.
GPT has four stages of equal times; backward takes twice as long as forward. `wanted_idle` is the bubble of the formula,
(S - 1) / (m + S - 1) of a step, for m micro-batches; `idle` is measured on each rank.
"""
import os

from hosts import run_ranks
from runner import numbers, parser, report

FOLDER = os.path.dirname(os.path.abspath(__file__))
EDGE_BITS = 8 * 4 * 1024 * 1024
FAST = 10_000_000_000
MAKESPANS = (8, 9, 10, 11, 11)
STAGES = 4


def parse():
    p = parser(__doc__)
    p.add_argument("--unit-ms", type=float, default=100, help="milliseconds of a unit of the diamond")
    p.add_argument("--pass-ms", type=float, default=50, help="milliseconds of a forward pass of a stage")
    p.add_argument("--micro-batches", type=numbers, default=[2, 4, 8, 16], help="of the pipelines")
    return p.parse_args()


def run(args, ranks, bits, model, wanted_units, *flags, **more):
    """Reports the line of a group whose hosts have links of `bits` per second."""
    command = [f"{args.bin}/bench_step", "--what", "makespan", "--steps", 5, "--shared_memory=false", "--model",
               f"{FOLDER}/makespan/{model}.textproto", *flags]
    # No packet is lost, so that a message takes its bytes divided by the rate.
    (line,) = run_ranks(ranks, f"{round(bits / 1000)}kbit", command, queue_ms=2000)
    report(args, **line, wanted_units=wanted_units, error=round(line["step_units"] / wanted_units - 1, 4), **more)


def main():
    args = parse()
    for edge, makespan in enumerate(MAKESPANS):
        bits = EDGE_BITS / (edge * args.unit_ms * 1e-3) if edge else FAST
        run(args, 2, bits, "diamond", 2 * makespan, "--times", "a:2:2,b:4:4,c:3:3,d:2:2", "--unit_ms", args.unit_ms,
            "--edge", edge)
    for micro_batches in args.micro_batches:
        passes = micro_batches + STAGES - 1
        run(args, STAGES, FAST, "gpt", 3 * passes, "--times", "attention:1:2", "--unit_ms", args.pass_ms,
            "--micro_batches", micro_batches, wanted_idle=round((STAGES - 1) / passes, 4))


if __name__ == "__main__":
    main()
