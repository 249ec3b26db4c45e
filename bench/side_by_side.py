#!/usr/bin/env python3
"""Runs two programs alternately, several times, and compares one number that they print as JSON.

Each program prints one JSON line with the field on stdout. They alternate, so that other load of the machine
affects both alike; medians are compared. The result is one JSON line.

    bench/side_by_side.py --ours "build/bin/bench_engine --model lenet --batch 64" \\
        --theirs "python3 single.py --model lenet --batch 64" --their-field samples_per_s
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys


def parse():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ours", required=True, help="command")
    p.add_argument("--theirs", required=True, help="command to compare with")
    p.add_argument("--field", default="samples_per_second", help="number that the programs print")
    p.add_argument("--their-field", help="name of the number in the other program; default: the same")
    p.add_argument("--rounds", type=int, default=5, help="runs of each program")
    p.add_argument("--name", default="", help="label of the comparison in the output")
    return p.parse_args()


def run(command, field):
    """The field of the last JSON line that the command prints; ends the program if there is none."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{command}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    values = json.loads(lines[-1])
    if field not in values:
        sys.exit(f"{command}: prints no '{field}', but {', '.join(values)}")
    return float(values[field])


def main():
    args = parse()
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(run(args.ours, args.field))
        theirs.append(run(args.theirs, args.their_field or args.field))
    a, b = statistics.median(ours), statistics.median(theirs)
    print(json.dumps({"bench": "side_by_side", "name": args.name, "field": args.field,
                      "ratio": round(a / b, 3), "ours": round(a, 3), "theirs": round(b, 3),
                      "rounds": args.rounds, "ours_all": [round(v, 2) for v in ours],
                      "theirs_all": [round(v, 2) for v in theirs]}))


if __name__ == "__main__":
    main()
