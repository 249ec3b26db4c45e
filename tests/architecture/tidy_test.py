#!/usr/bin/env python3
"""Checks what compilers do not see: comments, and the lists of rooms in configuration files.

- A path that a comment names exists.
- A comment is a sentence with a subject, so it does not open with "Of" or "Likewise".
- Diagrams in comments stand between `clang-format off` and `clang-format on`, because a formatter that
  wraps their lines makes them unreadable.
- clang-tidy reports on the headers of every room.
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLASHES = (".h", ".cc", ".cu", ".proto", ".js")
HASHES = (".py", ".sh", ".cmake", ".txt", ".yaml")
FRAGMENT = {"slashes": re.compile(r"(?<![:\"'])//+ ?(.*)"), "hashes": re.compile(r'(?:^|\s)#+ (.*)|^\s*"""(.*)')}
PATH = re.compile(r"(?<![\w./<$:-])(?:[a-z_0-9]+/)+[a-z_0-9-]+(?:\.[a-z]+)*(?![\w/])")
OPENING = re.compile(r"(Of|Likewise)\b")
ARROW = re.compile(r"\s{2,}.* -+> |\s{2,}-+> ")


def comments(name, text):
    """(number of the line, text of the comment in it), for each line that has one."""
    language = "slashes" if name.endswith(SLASHES) else "hashes" if name.endswith(HASHES) else None
    if language is None:
        return
    for number, line in enumerate(text.splitlines(), 1):
        found = FRAGMENT[language].search(line)
        if found:
            yield number, next(group for group in found.groups() if group is not None)


def names_of(files):
    """What a comment may call a file or folder: its path, also without the ending."""
    folders = {str(parent) for path in files for parent in pathlib.PurePath(path).parents}
    return files | folders | {path.rpartition(".")[0] for path in files}


def stale_paths(name, text, names):
    """Paths below folders of the first level that name nothing, also not below a folder of the file."""
    above = [f"{parent}/" for parent in pathlib.PurePath(name).parents]
    for number, comment in comments(name, text):
        for path in PATH.findall(comment) if "/" in comment else ():
            if path.split("/")[0] not in names or path in names or path.endswith((".pb.h", ".pb.cc")):
                continue
            if not any(folder + path in names for folder in above):
                yield f"{name}:{number}: there is no {path}"


def openings_without_subject(name, text):
    lines = text.splitlines()
    previous = -1
    for number, comment in comments(name, text):
        # A line below another one may continue its sentence.
        continues = previous == number - 1 and re.match(r"\s*(//|#)", lines[number - 1])
        if OPENING.match(comment) and not continues:
            yield f"{name}:{number}: the comment opens with '{comment.split()[0]}'"
        previous = number if comment else -1


def unprotected_diagrams(name, text):
    """Two lines with arrows below each other, outside of `clang-format off`."""
    if not name.endswith((".h", ".cc", ".cu")):
        return
    protected, previous = False, -1
    for number, comment in comments(name, text):
        protected = (protected or comment == "clang-format off") and comment != "clang-format on"
        if ARROW.match(comment) and not protected:
            if previous == number - 1:
                yield f"{name}:{number}: a diagram outside of clang-format off"
            previous = number


def rooms_of(files):
    """Folders of the first level that hold C++."""
    return {path.split("/")[0] for path in files if "/" in path and path.endswith((".h", ".cc", ".cu"))}


def files_below(root):
    """Paths of all files, without hidden folders and without what a build leaves behind."""
    tops = [top for top in root.iterdir() if not re.match(r"\.|build", top.name)]
    below = [path for top in tops for path in ((top, *top.rglob("*")) if top.is_dir() else (top,))]
    return {path.relative_to(root).as_posix() for path in below if path.is_file() and "__pycache__" not in path.parts}


class Repository(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = files_below(ROOT)
        cls.texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in sorted(cls.files)
                     if path.endswith(SLASHES + HASHES) and path != "tests/architecture/tidy_test.py"}

    def test_paths_in_comments_exist(self):
        names = names_of(self.files)
        self.assertEqual([], [one for item in self.texts.items() for one in stale_paths(*item, names)])

    def test_comments_have_a_subject(self):
        self.assertEqual([], [one for item in self.texts.items() for one in openings_without_subject(*item)])

    def test_diagrams_are_protected(self):
        self.assertEqual([], [one for item in self.texts.items() for one in unprotected_diagrams(*item)])

    def test_clang_tidy_knows_every_room(self):
        rooms = re.search(r"HeaderFilterRegex: '/\(([a-z|]+)\)/", (ROOT / ".clang-tidy").read_text(encoding="utf-8"))
        self.assertEqual(sorted(rooms_of(self.files)), rooms.group(1).split("|"))


class Check(unittest.TestCase):
    def test_paths(self):
        names = names_of({"worker/train/step.h", "bench/a-b.textproto"})
        text = ("// See worker/train/step, worker/train/step.h, worker/train and bench/a-b.textproto.\n"
                'Open("https://host/worker/gone");  // As in worker/gone.\n'
                "// A worker/rank.h is missing; other/gone and a/b are no folders of ours.\n")
        self.assertEqual(["a.cc:2: there is no worker/gone", "a.cc:3: there is no worker/rank.h"],
                         list(stale_paths("a.cc", text, names)))
        self.assertEqual([], list(stale_paths("a.cc", "// See worker/train/step.h", names_of({"old/worker/train/step.h"}))))
        self.assertEqual([], list(stale_paths("old/a.cc", "// See worker/train", names | {"old/worker/train"})))
        self.assertEqual(["a.py:1: there is no worker/gone"],
                         list(stale_paths("a.py", "x = 1  # As worker/gone does.\n", names)))

    def test_openings(self):
        text = "// Of all shards.\nint a;\n// The size\n// Of it.\nint b;  // Likewise.\n// Offsets.\n"
        self.assertEqual(["a.h:1: the comment opens with 'Of'", "a.h:5: the comment opens with 'Likewise.'"],
                         list(openings_without_subject("a.h", text)))
        self.assertEqual(["a.py:2: the comment opens with 'Of'"],
                         list(openings_without_subject("a.py", 'def f():\n    """Of the machine."""\n')))

    def test_diagrams(self):
        diagram = "//   idle -> running\n//        -> done\n"
        self.assertEqual(["a.h:2: a diagram outside of clang-format off"], list(unprotected_diagrams("a.h", diagram)))
        protected = f"// clang-format off\n{diagram}// clang-format on\n"
        self.assertEqual([], list(unprotected_diagrams("a.h", protected)))
        self.assertEqual([], list(unprotected_diagrams("a.h", "//   client->Send(a);\n//   client->Stop();\n")))


if __name__ == "__main__":
    sys.argv[0] = "tidy_test"
    unittest.main()
