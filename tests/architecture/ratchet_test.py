#!/usr/bin/env python3
"""Functions over 60 lines, files over 600 and classes over 40 methods can only become fewer and smaller.

oversize.txt lists those that exist, with their sizes. The test fails on one that is not listed or that has
grown, and on a listed size that is no longer true. After an improvement, `ratchet_test.py --update` lowers
the sizes and removes the lines of what is within the limits; it never adds or raises one.

lizard, which deploy/setup.sh installs, measures C++ and CUDA; Python's own parser measures Python.
"""

import ast
import multiprocessing
import os
import pathlib
import re
import sys
import tempfile
import unittest

try:
    import lizard
except ModuleNotFoundError:
    lizard = None

from tidy_test import ROOT, files_below

LIST = pathlib.Path(__file__).with_name("oversize.txt")
LIMITS = {"function": 60, "file": 600, "class": 40}
NAMESPACE = re.compile(r"^(?:inline )?namespace ([\w:]+) \{", re.MULTILINE)
MACRO = re.compile(r"\b(TEST\w*|INSTANTIATE\w*)\(")


def measure_cpp(text, name):
    """(kind, name, size) of functions and methods; the size of a method is 1."""
    for function in lizard.analyze_file.analyze_source_code(name, text).function_list:
        called = function.name
        if MACRO.search(function.long_name.replace(" (", "(")):
            called = re.sub(r"\s*([(),])\s*", r"\1", function.long_name).replace(",", ", ").rpartition("::")[2]
        yield "function", f"{name} {called.rpartition('::')[2]}", function.end_line - function.start_line + 1
        if "::" in called:
            yield "method", called.rpartition("::")[0], 1


def measure_python(text, name):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield "function", f"{name} {node.name}", node.end_lineno - node.lineno + 1
        elif isinstance(node, ast.ClassDef):
            methods = sum(isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) for one in node.body)
            yield "class", f"{name} {node.name}", methods


def measure_file(path):
    root, name = path
    text = (root / name).read_text(encoding="utf-8")
    measure = measure_python if name.endswith(".py") else measure_cpp
    spaces = NAMESPACE.findall(text) if measure is measure_cpp else []
    return [("file", name, text.count("\n")), *measure(text, name)], spaces


def measure_tree(root):
    """{(kind, name): size} of everything above the limits."""
    names = sorted(name for name in files_below(root) if name.endswith((".h", ".cc", ".cu", ".py")))
    with multiprocessing.Pool(2) as pool:
        measured = pool.map(measure_file, [(root, name) for name in names], chunksize=8)
    namespaces = {part for _, spaces in measured for space in spaces for part in space.split("::")}
    sizes, methods = {}, {}
    for kind, name, size in (one for ones, _ in measured for one in ones):
        if kind != "method":
            sizes[kind, name] = max(size, sizes.get((kind, name), 0))
        elif name.rpartition("::")[2] not in namespaces:
            methods["class", name] = methods.get(("class", name), 0) + size
    return {key: size for key, size in {**sizes, **methods}.items() if size > LIMITS[key[0]]}


def read_list(text):
    lines = [line.split(" ", 2) for line in text.splitlines() if line and not line.startswith("#")]
    return {(kind, name): int(size) for kind, size, name in lines}


def compare(listed, found):
    """What is wrong with the list, in words."""
    for (kind, name), size in sorted(found.items()):
        allowed = listed.get((kind, name), LIMITS[kind])
        unit = "methods" if kind == "class" else "lines"
        if size > allowed:
            yield f"{kind} {name} has {size} {unit}, at most {allowed} are allowed"
    for (kind, name), size in sorted(listed.items()):
        if found.get((kind, name), 0) < size:
            yield f"{kind} {name} has improved: run tests/architecture/ratchet_test.py --update"


def update(listed, found):
    return {key: min(size, found[key]) for key, size in listed.items() if key in found}


def write_list(listed):
    head = "".join(line + "\n" for line in LIST.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    order = sorted(listed.items(), key=lambda one: (one[0][0], -one[1], one[0][1]))
    LIST.write_text(head + "".join(f"{kind} {size} {name}\n" for (kind, name), size in order), encoding="utf-8")


@unittest.skipIf(lizard is None and not os.environ.get("CADRE_REQUIRE_TOOLS"),
                 "lizard is not installed: deploy/setup.sh test")
class Ratchet(unittest.TestCase):
    def test_nothing_has_grown(self):
        self.maxDiff = None
        listed = read_list(LIST.read_text(encoding="utf-8"))
        self.assertEqual([], list(compare(listed, measure_tree(ROOT))))

    def test_measures(self):
        sources = {
            "a.cc": "namespace cadre::inner {\n" + "class A { void f() { } };\n" + "int Long() {\n" + "  g();\n" * 60
                    + "}\n" + "".join(f"void B::F{i}() {{ }}\n" for i in range(41)) + "}\n",
            "b.cc": "namespace cadre {\n" + "void inner::f() {}\n" * 50 + "}\n",
            "b.py": "class C:\n" + "".join(f"    def f{i}(self): pass\n" for i in range(41)) + "\n" * 560,
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, text in sources.items():
                (pathlib.Path(folder) / name).write_text(text)
            found = measure_tree(pathlib.Path(folder))
        self.assertEqual({("function", "a.cc Long"): 62, ("class", "cadre::inner::B"): 41, ("class", "b.py C"): 41,
                          ("file", "b.py"): 602}, found)

    def test_the_list_only_shrinks(self):
        listed = {("file", "a"): 700, ("file", "b"): 700, ("file", "c"): 700}
        found = {("file", "a"): 701, ("file", "b"): 650, ("file", "d"): 601}
        self.assertEqual(["file a has 701 lines, at most 700 are allowed", "file d has 601 lines, at most 600 are allowed",
                          "file b has improved: run tests/architecture/ratchet_test.py --update",
                          "file c has improved: run tests/architecture/ratchet_test.py --update"],
                         list(compare(listed, found)))
        self.assertEqual({("file", "a"): 700, ("file", "b"): 650}, update(listed, found))


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        write_list(update(read_list(LIST.read_text(encoding="utf-8")), measure_tree(ROOT)))
    else:
        sys.argv[0] = "ratchet_test"
        unittest.main()
