#!/usr/bin/env python3
"""Checks the lock annotations (ABSL_GUARDED_BY and others) of the product with clang's thread-safety analysis.

    deploy/build.sh && tests/architecture/check_locks.py [--all] [--build DIR] [--clang PROGRAM] [FILTER]

Nothing is compiled to code. Analyses the sources with annotations, in themselves or in their headers, and for every
other annotated header one that includes it; with --all every source, six minutes on two cores. FILTER selects the
sources whose path contains it. Requires clang 16 or newer and its
libomp (Debian: clang-16, libomp-16-dev). Exits with 1 if a lock is not held where an annotation requires it, and
with 2 if a source cannot be analysed; without clang it is skipped, unless CADRE_REQUIRE_TOOLS is set.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Options that decide what a source means; the others are those of another compiler.
KEPT = ("-I", "-D", "-std=", "-m")


def command_of(entry, clang):
    words = iter(shlex.split(entry["command"]))
    kept = []
    for word in words:
        if word == "-isystem":
            kept += [word, next(words)]
        elif word.startswith(KEPT):
            kept.append(word)
    return [clang, "-fsyntax-only", "-Wno-everything", "-Wthread-safety", *kept, entry["file"]]


def is_product(entry, build):
    """Sources of rooms, and the files of a unity build that include them."""
    path = pathlib.Path(entry["file"])
    relative = path.relative_to(build) if path.is_relative_to(build) else path.relative_to(ROOT)
    return path.suffix in (".cc", ".cxx") and relative.parts[0] not in ("tests", "bench", "generated", "proto")


def sources_of(entry):
    """The source of an entry, or those that its file of a unity build includes."""
    path = pathlib.Path(entry["file"])
    if path.suffix == ".cc":
        return [path]
    return [pathlib.Path(file) for file in re.findall(r'#include "([^"]+\.cc)"', path.read_text(encoding="utf-8"))]


def annotated_headers(rooms):
    """Their paths, relative to the root."""
    return {str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.h")
            if ANNOTATION.search(path.read_text(encoding="utf-8"))}


def with_annotations(entries):
    """The entries that must be analysed so that every annotated source and header is."""
    headers = annotated_headers({source.relative_to(ROOT).parts[0] for entry in entries
                                 for source in sources_of(entry)})
    chosen, rest = [], []
    for entry in entries:
        sources = sources_of(entry)
        own = any(ANNOTATION.search(source.read_text(encoding="utf-8")) or
                  str(source.with_suffix(".h").relative_to(ROOT)) in headers for source in sources)
        (chosen if own else rest).append(entry)

    def included(entry):
        return {name for source in sources_of(entry)
                for name in re.findall(r'#include "([^"]+\.h)"', source.read_text(encoding="utf-8"))}

    seen = set().union(*(included(entry) for entry in chosen))
    for entry in rest:
        new = (included(entry) & headers) - seen
        if new:
            chosen.append(entry)
            seen |= new
    return chosen


def analyse(entry, clang):
    done = subprocess.run(command_of(entry, clang), cwd=entry["directory"], capture_output=True, text=True)
    return entry["file"], done.returncode, done.stderr


# The exit code for which CTest counts a test as skipped.
SKIPPED = 77
ANNOTATION = re.compile(r"\bABSL_(GUARDED_BY|PT_GUARDED_BY|EXCLUSIVE_LOCKS_REQUIRED|SHARED_LOCKS_REQUIRED"
                        r"|LOCKS_EXCLUDED|EXCLUSIVE_LOCK_FUNCTION|SCOPED_LOCKABLE)\b")
# A field that is read without its lock, which clang must report.
VIOLATION = """
struct __attribute__((capability("mutex"))) Mutex {};
struct Counter {
  Mutex mutex;
  int value __attribute__((guarded_by(mutex)));
  int Get() { return value; }
};
"""


def reports_violations(clang):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "violation.cc")
        pathlib.Path(file).write_text(VIOLATION, encoding="utf-8")
        _, code, messages = analyse({"command": "c++ -std=c++20", "file": file, "directory": folder}, clang)
    return code == 0 and "requires holding mutex" in messages


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--all", action="store_true", help="also sources without annotations")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build folder (default: build)")
    parser.add_argument("--clang", default="clang++-16", help="default: clang++-16")
    options = parser.parse_args()
    if shutil.which(options.clang) is None:
        if not os.environ.get("CADRE_REQUIRE_TOOLS"):
            print(f"skipped: there is no {options.clang}")
            sys.exit(SKIPPED)
        parser.error(f"there is no {options.clang}: install clang-16 and libomp-16-dev, or give --clang")
    if not (options.build / "compile_commands.json").exists():
        parser.error(f"{options.build} has no compile_commands.json: run deploy/build.sh first")
    if not reports_violations(options.clang):
        parser.error(f"{options.clang} does not report a field that is read without its lock")
    return options


def main():
    options = parse_arguments()
    build = options.build.resolve()
    entries = [entry for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
               if options.filter in entry["file"] and is_product(entry, build)]
    if not options.all:
        entries = with_annotations(entries)
    if not entries:
        sys.exit(f"check_locks: no source has '{options.filter}' in its path")
    warned, failed = [], []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [pool.submit(analyse, entry, options.clang) for entry in entries]
        for number, one in enumerate(concurrent.futures.as_completed(running), 1):
            file, code, messages = one.result()
            if sys.stderr.isatty():
                print(f"\r{number} of {len(entries)} sources", end="", file=sys.stderr, flush=True)
            if code != 0:
                failed.append(file)
            elif messages:
                warned.append(file)
            if messages:
                print(messages, flush=True)
    print(f"{len(entries)} sources, {len(warned)} with findings, {len(failed)} could not be analysed")
    sys.exit(2 if failed else 1 if warned else 0)


if __name__ == "__main__":
    main()
