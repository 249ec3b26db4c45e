#!/usr/bin/env python3
"""Prints the mutation score: the share of mutants that the unit tests and the simulation find.

  tests/mutation/run.py [--mutants N] [--draw SEED] [--only PATH] [--both] [--seeds N] [--jobs N] [--build FOLDER]
  tests/mutation/run.py --planted         the bugs of planted.py instead of automatic mutants, in the simulation
  tests/mutation/run.py --mutant ID       one mutant, with the output of what finds it
  tests/mutation/run.py --list            the mutants, and what each changes

Builds the target `mutation` first. N mutants are drawn, as evenly as possible over the files. The unit tests run first,
those programs only that reach the mutant; `cadre-sim` runs if they pass, or always with --both. A crash, and a run
that takes much longer than without a mutant (`timeout`), count as found. Mutants of equivalent.py are not drawn.

The survivors are printed with file, line and change; the last line is JSON. Exit code 1: the score is below --least.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

import equivalent

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIMULATION = "cadre-sim"
MEMORY = 4 << 30


class Program:
    """A program with all mutants, the mutants that it reaches, and how much time it may take.

    The limit is one of processor time, so that a busy machine changes no verdict; one of time ends programs that wait.
    """

    def __init__(self, folder, name, arguments):
        self.name = name
        self.command = [str(folder / name), *arguments]
        self.processor_limit, self.limit = 600, 1200
        with tempfile.NamedTemporaryFile(mode="r") as reached:
            begin, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            found, output = self.execute({"CADRE_MUTANTS_REACHED": reached.name})
            if found:
                sys.exit(f"run.py: {name} fails without a mutant ({found}):\n{output}")
            self.used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used
            self.processor_limit, self.limit = round(5 + 4 * self.used), 60 + 10 * (time.monotonic() - begin)
            self.reached = set(map(int, reached.read().split()))

    def set_limits(self):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (self.processor_limit, self.processor_limit + 1))

    def execute(self, variables):
        """How the program fails, or an empty text; and its output."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = subprocess.run(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        errors="replace", timeout=self.limit, cwd=folder, check=False,
                                        env={**os.environ, "TMPDIR": folder, "TEST_TMPDIR": folder, **variables},
                                        preexec_fn=self.set_limits)
            except subprocess.TimeoutExpired:
                return "timeout", ""
        if result.returncode == -signal.SIGXCPU:
            return "timeout", result.stdout
        return (self.name if result.returncode != 0 else ""), result.stdout

    def finds(self, mutant):
        """How the program finds the mutant, or an empty text; and its output."""
        if mutant["number"] not in self.reached:
            return "", "not reached"
        return self.execute({"CADRE_MUTANT": str(mutant["number"])})


def id_of(mutant):
    return mutant["name"] or "{path}:{line}:{column}:{kind}".format(**mutant)


def one_line(text):
    return " ".join(text.split())


def change(mutant):
    return f"  - {one_line(mutant['before'])}\n  + {one_line(mutant['after'])}"


def is_equivalent(mutant):
    return any(entry.fits(mutant["path"], mutant["text"], mutant["before"], mutant["after"])
               for entry in equivalent.EQUIVALENT)


def draw(mutants, count, seed):
    """`count` mutants, as evenly as possible over the files."""
    dice = random.Random(seed)
    by_file = {}
    for mutant in mutants:
        by_file.setdefault(mutant["path"], []).append(mutant)
    for of_file in by_file.values():
        dice.shuffle(of_file)
    files = sorted(by_file)
    dice.shuffle(files)
    drawn = []
    while len(drawn) < count and any(by_file.values()):
        for path in files:
            if by_file[path] and len(drawn) < count:
                drawn.append(by_file[path].pop())
    return drawn


def judge(mutant, tests, simulation, both):
    """{"unit": how, "simulation": how}, which are empty if the mutant survived or did not run."""
    unit = next(filter(None, (program.finds(mutant)[0] for program in tests)), "")
    found = simulation.finds(mutant)[0] if both or not unit else ""
    return {"unit": unit, "simulation": found}


def run_all(mutants, tests, simulation, options):
    verdicts = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(judge, m, tests, simulation, options.both): m for m in mutants}
        for done in concurrent.futures.as_completed(running):
            mutant, verdict = running[done], done.result()
            verdicts[mutant["number"]] = verdict
            found = sum(any(v.values()) for v in verdicts.values())
            if sys.stderr.isatty():
                print(f"\r{len(verdicts)} of {len(mutants)} mutants, {found} found", end="", file=sys.stderr, flush=True)
            else:
                how = verdict["unit"] or verdict["simulation"] or "survived"
                print(f"{len(verdicts)}/{len(mutants)} {id_of(mutant)}: {how}", file=sys.stderr, flush=True)
    return verdicts


def report(mutants, verdicts, options, seconds):
    survivors = [m for m in mutants if not any(verdicts[m["number"]].values())]
    for mutant in survivors:
        print(f"survived: {id_of(mutant)}\n{change(mutant)}")
    ways = [v for verdict in verdicts.values() for v in verdict.values()]
    score = 1 - len(survivors) / len(mutants) if mutants else 1
    unit = sum(bool(v["unit"]) for v in verdicts.values())
    simulation = sum(bool(v["simulation"]) for v in verdicts.values())
    print(json.dumps({"mutants": len(mutants), "found": len(mutants) - len(survivors), "score": round(score, 3),
                      "found_by_unit_tests": unit, "found_by_simulation": simulation,
                      "simulated": "all" if options.both else "survivors of the unit tests",
                      "timeouts": ways.count("timeout"), "draw": options.draw, "seeds": options.seeds,
                      "seconds": round(seconds)}))
    return score


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--draw", type=int, default=1, metavar="SEED")
    parser.add_argument("--only", default="", metavar="PATH", help="only mutants of files whose path begins so")
    parser.add_argument("--both", action="store_true", help="run the simulation for every mutant")
    parser.add_argument("--seeds", type=int, default=500, help="seeds of the simulation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--build", type=lambda name: pathlib.Path(name).resolve(), default=ROOT / "build")
    parser.add_argument("--least", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--mutant", metavar="ID")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def tests_of(folder):
    """The unit tests, those that take the least time first."""
    return sorted((Program(folder, path.name, ["--gtest_fail_fast", "--gtest_brief=1"])
                   for path in folder.iterdir() if path.name.endswith("_test")), key=lambda program: program.used)


def main():
    options = parse()
    subprocess.run(["ninja", "-C", str(options.build), "--quiet", "mutation"], stdout=sys.stderr, check=True)
    folder = options.build / "tests/mutation"
    mutants = json.loads((folder / "sources/mutants.json").read_text())
    mutants = [m for m in mutants if m["path"].startswith(options.only)]
    if options.mutant:
        mutants = [m for m in mutants if id_of(m) == options.mutant] or sys.exit(f"no mutant '{options.mutant}'")
    else:
        mutants = [m for m in mutants if bool(m["name"]) == options.planted and not is_equivalent(m)]
    if options.list:
        for mutant in mutants:
            print(f"{id_of(mutant)}\n{change(mutant)}")
        return 0
    begin = time.monotonic()
    simulation = Program(folder / "bin", SIMULATION, ["--seeds", str(options.seeds), "--shrink_runs", "0"])
    if options.mutant:
        for program in [*([] if options.planted else tests_of(folder / "bin")), simulation]:
            found, output = program.finds(mutants[0])
            print(f"{program.name}: {found or 'does not find it'}\n{output[-4000:] if found else ''}")
        return 0
    if not options.planted:
        mutants = draw(mutants, options.mutants, options.draw)
    tests = [] if options.planted else tests_of(folder / "bin")
    verdicts = run_all(mutants, tests, simulation, options)
    return int(report(mutants, verdicts, options, time.monotonic() - begin) < options.least)


if __name__ == "__main__":
    sys.exit(main())
