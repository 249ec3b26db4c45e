#!/usr/bin/env python3
"""Writes instrumented copies of sources below a folder, and mutants.json, the list of their mutants.

  generate.py ROOT FOLDER PATH ...

ROOT is the repository; the PATHs are relative to it. tree-sitter, which deploy/setup.sh installs, parses the sources.
"""

import dataclasses
import itertools
import json
import pathlib
import sys

import planted
import sites

# Numbers of one file, so that a change of another one leaves its instrumented source unchanged. The product with the
# number of files is at most the size of Mutants::reached_ in active.h.
MAX_OF_FILE = 1024
MAX_FILES = 128


def generate(root, paths):
    """Yields (path, instrumented source, mutants)."""
    for index, path in enumerate(sorted(paths)):
        numbers = itertools.count(index * MAX_OF_FILE + 1)
        bugs = [(bug.name, bug.old, bug.new, bug.after) for bug in planted.BUGS if bug.path == path]
        yield path, *sites.instrument(path, (root / path).read_bytes(), numbers.__next__, bugs)


def main():
    root, folder = map(pathlib.Path, sys.argv[1:3])
    mutants = []
    if len(sys.argv) > 3 + MAX_FILES:
        sys.exit(f"generate.py: more than {MAX_FILES} sources")
    for path, text, found in generate(root, sys.argv[3:]):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if len(found) >= MAX_OF_FILE:
            sys.exit(f"generate.py: {path} has {len(found)} mutants, more than {MAX_OF_FILE - 1}")
        if not target.exists() or target.read_bytes() != text:
            target.write_bytes(text)
        mutants += found
    (folder / "mutants.json").write_text(json.dumps([dataclasses.asdict(m) for m in mutants], indent=0))


if __name__ == "__main__":
    main()
