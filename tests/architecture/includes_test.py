#!/usr/bin/env python3
"""Compares every #include with the table of rooms in docs/architecture.md, and finds circles of units.

A room is a source folder that is one library. The table lists, for each room, the rooms that it may
include. The test fails on an include that the table does not permit, on a permission that no file
uses, on a permission that does not point to a lower floor, and on a file outside all rooms.

A unit is a header with its source. The test also fails on units that include one another.
"""

import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ["floor", "room", "holds", "may include"]
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# The circles of units that are left: none. No circle is ever added.
CIRCLES = []


def parse_table(markdown):
    """{room: (floor, {permitted room})} of the first table whose header is HEADER."""
    rooms = {}
    inside = False
    for line in markdown.splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]
        if not inside:
            inside = cells == HEADER
        elif len(cells) != len(HEADER):
            break
        elif cells[0].isdigit():
            permitted = {name.strip().rstrip("/") for name in cells[3].split(",")} - {"-", ""}
            for room in cells[1].split(","):
                rooms[room.strip().rstrip("/")] = (int(cells[0]), permitted)
    return rooms


def room_of(path, rooms):
    """The longest room name that is a folder of `path`, or None."""
    names = [room for room in rooms if path.startswith(room + "/")]
    return max(names, key=len, default=None)


def check(root, rooms):
    """Lists the violations, one line each: "path:line: message"."""
    violations = []
    used = {room: set() for room in rooms}
    for room, (floor, permitted) in rooms.items():
        for other in sorted(permitted):
            if other not in rooms:
                violations.append(f"{room} may include {other}, which is not a room")
            elif rooms[other][0] >= floor:
                violations.append(f"{room} may include {other}, which is not on a lower floor")
    files = [path for top in sorted({room.split("/")[0] for room in rooms})
             for path in sorted((root / top).rglob("*")) if path.suffix in (".h", ".cc", ".cu")]
    for path in files:
        name = path.relative_to(root).as_posix()
        room = room_of(name, rooms)
        if room is None:
            violations.append(f"{name}:1: the file belongs to no room")
            continue
        # Comments are replaced by their line breaks, so that line numbers do not change.
        text = COMMENT.sub(lambda c: "\n" * c.group().count("\n"), path.read_text(encoding="utf-8"))
        for include in INCLUDE.finditer(text):
            target = room_of(include.group(2), rooms)
            location = f"{name}:{text.count(chr(10), 0, include.start(2)) + 1}"
            if target is None:
                if include.group(1) == '"' and re.match(r"[^/]*$|(tests|bench)/", include.group(2)):
                    violations.append(f'{location}: "{include.group(2)}" does not start at a room')
                continue
            if include.group(1) == "<":
                violations.append(f"{location}: <{include.group(2)}> must be written in quotes")
            used[room].add(target)
            if target != room and target not in rooms[room][1]:
                violations.append(f"{location}: {room} may not include {target}")
    for room, (_, permitted) in rooms.items():
        if not used[room] and not any(room_of(str(f.relative_to(root)), rooms) == room for f in files):
            violations.append(f"{room} holds no source file")
        for other in sorted(permitted - used[room]):
            violations.append(f"no file of {room} includes {other}: remove the permission")
    return violations


def circles(root, folders):
    """Sets of units that reach one another by includes, as sorted lists of names without endings."""
    includes = {}
    for path in (path for top in folders for path in (root / top).rglob("*") if path.suffix in (".h", ".cc", ".cu")):
        names = INCLUDE.findall(COMMENT.sub("", path.read_text(encoding="utf-8")))
        unit = path.relative_to(root).with_suffix("").as_posix()
        includes.setdefault(unit, set()).update(name.rsplit(".", 1)[0] for _, name in names)
    # What includes nothing that is left is in no circle.
    while done := [unit for unit, names in includes.items() if not (names - {unit}) & includes.keys()]:
        for unit in done:
            del includes[unit]

    def reached(unit):
        seen, pending = set(), [unit]
        while pending:
            new = (includes[pending.pop()] & includes.keys()) - seen - {unit}
            seen |= new
            pending += new
        return seen

    reach = {unit: reached(unit) for unit in includes}
    found = {unit: sorted([unit, *(other for other in reach[unit] if unit in reach[other])]) for unit in reach}
    return sorted(circle for unit, circle in found.items() if len(circle) > 1 and circle[0] == unit)


class Repository(unittest.TestCase):
    def test_includes_match_table(self):
        rooms = parse_table((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
        self.assertGreater(len(rooms), 15, "the table of rooms is missing")
        self.assertEqual([], check(ROOT, rooms))

    def test_circles_of_units(self):
        rooms = parse_table((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
        self.assertEqual(CIRCLES, circles(ROOT, {*(room.split("/")[0] for room in rooms), "bench", "tests"}))

    def test_errors_of_the_system_have_one_prefix(self):
        """ErrnoStatus and StorageError (base) write "cannot" themselves."""
        rooms = parse_table((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
        doubled = [str(path.relative_to(ROOT)) for room in (*{room.split("/")[0] for room in rooms}, "bench")
                   for path in (ROOT / room).rglob("*.cc")
                   if re.search(r'\b(ErrnoStatus|StorageError)\([^;{"]*"cannot', path.read_text(encoding="utf-8"))]
        self.assertEqual([], doubled)


class Check(unittest.TestCase):
    ROOMS = {"base": (0, set()), "tensor": (1, {"base"}), "tensor/io": (2, {"tensor"})}

    def violations(self, files, checked=lambda root: check(root, Check.ROOMS)):
        """Violations in a valid tree to which the files are added."""
        sources = {"base/a.h": "", "tensor/b.h": '#include "base/a.h"\n',
                   "tensor/io/c.cu": '#include "tensor/b.h"\n', **files}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in sources.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return checked(pathlib.Path(folder))

    def test_circles(self):
        for expected, files in (
            ([], {"base/a.cc": '#include "base/a.h"\n'}),
            ([["base/a", "base/d"]], {"base/a.cc": '#include "base/d.h"\n', "base/d.h": '#include "base/a.h"\n'}),
            ([["base/a", "base/d", "base/e"]],
             {"base/a.cc": '#include "base/d.h"\n', "base/d.h": '#include "base/e.h"\n',
              "base/e.cu": '#include "base/a.h"\n', "base/f.h": '#include "base/a.h"\n'}),
        ):
            with self.subTest(expected):
                self.assertEqual(expected, self.violations(files, lambda root: circles(root, ["base", "tensor"])))

    def test_violations(self):
        for expected, files in (
            ([], {"base/d.cc": '#include <vector>\n/*\n#include "tensor/b.h"\n*/\n'}),
            (["base/d.cc:3: base may not include tensor"],
             {"base/d.cc": '/*\n*/\n#include "tensor/b.h"\n'}),
            (["tensor/io/c.cu:1: tensor/io may not include base",
              "no file of tensor/io includes tensor: remove the permission"],
             {"tensor/io/c.cu": '#include "base/a.h"\n'}),
            (["no file of tensor includes base: remove the permission"], {"tensor/b.h": ""}),
            (['base/d.cc:1: "a.h" does not start at a room',
              "base/d.cc:2: <base/a.h> must be written in quotes"],
             {"base/d.cc": '#include "a.h"\n#include <base/a.h>\n'}),
        ):
            with self.subTest(expected):
                self.assertEqual(expected, self.violations(files))

    def test_upward_permission(self):
        self.assertEqual(["base may include tensor, which is not on a lower floor"],
                         [f for f in check(ROOT / "no", {"base": (0, {"tensor"}), "tensor": (1, set())})
                          if "floor" in f])


if __name__ == "__main__":
    sys.argv[0] = "includes_test"
    unittest.main()
