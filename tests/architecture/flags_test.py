#!/usr/bin/env python3
"""Compares every flag that messages and documentation name with the flags that exist.

A message or a page that advises a flag which no program has cannot be followed. Messages are the
string literals of C++ files; the documentation is README.md, docs and deploy. The flags that exist
are those of the daemons (DEFINE_...), of `cadre` (cli), of the tests and benchmarks, and those of
Python programs (add_argument) and shell scripts.
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9_-]*[a-z0-9])")
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*')
DEFINITIONS = {
    ".cc": [re.compile(r"DEFINE_\w+\(\s*(\w+)"), re.compile(r'\{\s*"([a-z0-9-]+)",\s*k[A-Z]')],
    ".py": [re.compile(r'add_argument\(\s*"--([a-z0-9-]+)"'), re.compile(r'add_argument\(\s*"-\w",\s*"--([a-z0-9-]+)"')],
    ".sh": [re.compile(r"^\s*(?:--[a-z-]+(?:=\*)?\s*\|\s*)*--([a-z-]+)(?:=\*)?(?:\s*\|[^)]*)?\)", re.MULTILINE)],
}
# Flags of every program, and of programs of others that the documentation calls.
OTHERS = {
    "help", "version", "logtostderr", "flagfile", "fromenv", "verbose", "build-arg", "target", "cpu-manager-policy",
    "topology-manager-policy", "ntasks-per-node", "cpus-per-task", "from-file", "from-literal", "namespace", "set", "now",
    "unit", "reference", "nproc-per-node", "descriptor-set-out", "install", "ulimit", "pids-limit", "max-restarts", "standalone",
    "no",  # --no-FLAG
}


def names_in(text):
    return {match.replace("_", "-") for match in FLAG.findall(text)}


def defined_in(files):
    names = set()
    for path, text in files.items():
        for pattern in DEFINITIONS.get(pathlib.PurePath(path).suffix, []):
            names |= {name.replace("_", "-") for name in pattern.findall(text)}
    return names


def messages_of(text):
    """The string literals of a C++ file, joined as the compiler joins adjacent ones."""
    return "\n".join(literal for literal in LITERAL.findall(text) if literal.startswith('"'))


def check(files):
    """Lists the flags that do not exist, one line each: "path: --flag"."""
    defined = defined_in(files) | OTHERS
    violations = []
    for path, text in sorted(files.items()):
        suffix = pathlib.PurePath(path).suffix
        if path.startswith(("tests/", "bench/", "python/tests/")):
            continue
        if suffix in (".cc", ".h"):
            text = messages_of(text)
        elif suffix not in (".md", ".txt"):
            continue
        for name in sorted(names_in(text)):
            if name not in defined and not (name.startswith("no-") and name[3:] in defined):
                violations.append(f"{path}: --{name}")
    return violations


def read(root):
    files = {}
    for folder in ("base", "bench", "cli", "coordinator", "deploy", "device", "docs", "group", "kernels", "model", "plan",
                   "python", "server", "tensor", "tests", "worker"):
        for path in (root / folder).rglob("*"):
            if path.suffix in (".cc", ".h", ".py", ".sh", ".md") and path.is_file():
                files[path.relative_to(root).as_posix()] = path.read_text(errors="replace")
    for path in (root / "cli/help").glob("*.txt"):
        files[path.relative_to(root).as_posix()] = path.read_text()
    files["README.md"] = (root / "README.md").read_text()
    return files


class FlagsTest(unittest.TestCase):
    def test_flags_exist(self):
        files = read(ROOT)
        self.assertGreater(len(defined_in(files)), 100)
        self.assertEqual([], check(files))

    def test_finds_unknown_flags(self):
        flags = {"worker/main.cc": 'DEFINE_string(data_root, "", "folder"); // --comment\nF("see --data_root");'}
        self.assertEqual([], check(flags))
        for path, text, expected in (
            ("cli/a.cc", 'Fail("set --data-rot or --data-root");', ["cli/a.cc: --data-rot"]),
            ("cli/verbs.cc", 'Flag{"dir", kFolder, "DIR"}; "--dir, --no-dir, --folder"', ["cli/verbs.cc: --folder"]),
            ("docs/a.md", "`--data-root=/data --checkpoint-rot`", ["docs/a.md: --checkpoint-rot"]),
        ):
            with self.subTest(expected):
                self.assertEqual(expected, check(flags | {path: text}))


if __name__ == "__main__":
    sys.argv[0] = "flags_test"
    unittest.main()
