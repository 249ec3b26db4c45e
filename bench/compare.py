#!/usr/bin/env python3
"""Shows the values of two files of results side by side, with their ratios; or runs two programs alternately.

    bench/compare.py before.jsonl after.jsonl
    bench/compare.py --rounds 5 --field samples_per_second "build/bin/bench_engine --model lenet --batch 64" \\
        --their-field samples_per_s "python3 single.py --model lenet --batch 64"

Lines of the files are compared if their parameters are equal: what names no value, processor or count of work. Of
several such lines the medians count. A ratio is the value in the first file divided by that in the second one.

With --field the arguments are commands that print JSON lines. They alternate, so that other load of the machine affects
both alike, and medians of that number in their last lines are compared. The result is one JSON line.
"""
import re
import shlex
import statistics

from runner import last_line, parser, read_lines, report

# Names of values: a unit at their end, or a number without a unit.
VALUE = re.compile(r"(_|\b)(ms|us|s|seconds|gbs|gflops|tflops|busbw|algbw|units|mib|ratio|share|loss|accuracy|error"
                   r"|idle|scaling|overhead|efficiency)$|_bytes$|per_(second|s|core)|_copies_|ratio_to"
                   r"|of_(peak|limit|socket)")
# Fields that do not identify a measurement and that are not measured values.
NEITHER = re.compile(r"^(unit_ms|heartbeat_ms|cpu|cores|instruction_sets|family_model|iterations|rounds|.*\bcount|all"
                     r"|tried|heartbeats.*|records_written|calls|link|chosen|best_single|gloo_algorithm|.*against.*)$")


def flat(fields, prefix=""):
    """The fields of a line, those of objects in it with the names of both."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def by_parameters(lines):
    """{parameters as text: {name: the values of all lines}}"""
    found = {}
    for line in lines:
        # Older lines of bench_allreduce do not name it.
        fields = {name: value for name, value in flat({"bench": "allreduce", **line}) if not NEITHER.match(name)}
        values = {name: value for name, value in fields.items()
                  if VALUE.search(name) and isinstance(value, (int, float))}
        key = " ".join(f"{name}={value}" for name, value in fields.items() if name not in values and "." not in name)
        for name, value in values.items():
            found.setdefault(key, {}).setdefault(name, []).append(value)
    return found


def compare_files(ours, theirs):
    both = [key for key in ours if key in theirs]
    for key in both:
        print(key)
        for name in (name for name in ours[key] if name in theirs[key]):
            a, b = statistics.median(ours[key][name]), statistics.median(theirs[key][name])
            print(f"  {name:36} {a:14.6g} {b:14.6g}  {f'{a / b:.3f}' if b else '-'}")
    only = [len(lines) - len(both) for lines in (ours, theirs)]
    print(f"{len(both)} compared; only in the first: {only[0]}, only in the second: {only[1]}")


def compare_commands(args):
    fields, values = (args.field, args.their_field or args.field), ([], [])
    for _ in range(args.rounds):
        for command, field, series in zip((args.ours, args.theirs), fields, values):
            series.append(float(last_line(shlex.split(command))[0][field]))
    ours, theirs = map(statistics.median, values)
    report(args, "side_by_side", name=args.name, field=args.field, ratio=round(ours / theirs, 3), ours=round(ours, 3),
           theirs=round(theirs, 3), rounds=args.rounds, ours_all=[round(v, 2) for v in values[0]],
           theirs_all=[round(v, 2) for v in values[1]])


def main():
    p = parser(__doc__, programs=False)
    p.add_argument("ours", metavar="OURS", help="file of JSON lines, or command")
    p.add_argument("theirs", metavar="THEIRS", help="file or command to compare with")
    p.add_argument("--field", help="number that both commands print")
    p.add_argument("--their-field", help="name of the number in the second one's line; default: the same")
    p.add_argument("--rounds", type=int, default=5, help="runs of each command")
    p.add_argument("--name", default="", help="label of the comparison of commands in its line")
    args = p.parse_args()
    if args.field:
        compare_commands(args)
    else:
        compare_files(*(by_parameters(read_lines(path)) for path in (args.ours, args.theirs)))


if __name__ == "__main__":
    main()
