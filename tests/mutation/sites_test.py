#!/usr/bin/env python3
"""Tests of the generator of mutants: what it mutates, and that all else stays as it is."""

import itertools
import pathlib
import re
import sys
import unittest

try:
    import tree_sitter  # noqa: F401
except ModuleNotFoundError:
    print("skipped: tree-sitter is not installed (deploy/setup.sh test)")
    sys.exit(77)

import equivalent
import generate
import planted
import sites

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("coordinator/run", "coordinator/machine", "coordinator/cluster")
FILES = ("base/stream_slots.cc", "member/averager.cc", "member/kept_change.cc", "member/rank_protocol.cc",
         "member/shard_exchange.cc", "member/shard_values.cc", "member/state_vault.cc", "server/ledger.cc",
         "server/ledger_run.cc", "server/order_queue.cc")


def sources():
    return [str(path.relative_to(ROOT)) for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.cc"))
            ] + list(FILES)


def mutate(text, planted_bugs=()):
    """(instrumented text, {kind: [(before, after)]})."""
    instrumented, mutants = sites.instrument("a.cc", text.encode(), itertools.count(1).__next__, planted_bugs)
    kinds = {}
    for mutant in mutants:
        kinds.setdefault(mutant.kind, []).append((mutant.before, mutant.after))
    return instrumented.decode(), kinds


class SitesTest(unittest.TestCase):

    def test_conditions(self):
        _, kinds = mutate("void f() { if (a) return; while (!b) g = c ? 2.5 : d; if (e == f) return; }")
        self.assertEqual(kinds["negate"], [("a", "!(a)"), ("!b", "b"), ("c", "!(c)")])
        self.assertEqual(kinds["equal"], [("e == f", "e != f")])

    def test_relations_and_operands(self):
        text, kinds = mutate("void f() { x = a < b && c >= d && !e; }")
        self.assertEqual(kinds["bound"], [("a < b", "a <= b"), ("c >= d", "c > d")])
        self.assertEqual(len(kinds["drop"]), 3)
        self.assertIn("Less(", text)

    def test_operands_that_guard_an_iterator(self):
        text, kinds = mutate("void f() { x = it != m.end() && (it->a || b); y = it == m.end() || c; }")
        self.assertEqual(len(kinds["drop"]), 6)
        self.assertEqual(text.count("cadre::mutation::Unchecked("), 1)
        self.assertRegex(text, r"Unchecked\(\d+, .*it != m.end\(\).*, true\) &&")
        text, _ = mutate("void f() { if (m.end() == it || it == m.rend() || (*it).a) return; }")
        self.assertEqual(text.count("cadre::mutation::Unchecked("), 1)
        self.assertIn(", false)", text)

    def test_constants(self):
        _, kinds = mutate("constexpr absl::Duration kWait = absl::Seconds(10);\nint x = 0;\nint y = 1;")
        self.assertEqual(kinds["plus1"], [("10", "11"), ("0", "1"), ("1", "2")])
        self.assertEqual(kinds["twice"], [("10", "20")])
        self.assertEqual(kinds["zero"], [("10", "0"), ("1", "0")])

    def test_skipped_calls(self):
        _, kinds = mutate("void f() { g(1.5); x = h(); LOG(INFO) << 1; CHECK(a < b); v.reserve(n); }")
        self.assertEqual(kinds["skip"], [("g(1.5);", ";")])
        self.assertNotIn("bound", kinds)

    def test_returned_values(self):
        _, kinds = mutate("bool f() { return g(); }\nint h() { return g(); }\nbool i() { return [] { return a; }(); }")
        self.assertEqual([before for before, _ in kinds["return"]], ["g()", "[] { return a; }()"])

    def test_constant_expressions_are_left_alone(self):
        text = ("static_assert(1 < 2);\nint a[3];\nstd::array<int, 4> b;\nconstexpr int F() { return 1; }\n"
                "enum { kA = 5 };\nconstexpr absl::string_view kName = \"name\";\n")
        self.assertEqual(mutate(text), (text, {}))

    def test_planted_bugs(self):
        text = "void f() {\n  a = b + c;\n  g();\n}\n"
        bugs = [("sum", "b + c", "b - c"), ("call", "g();", "")]
        instrumented, kinds = mutate(text, bugs)
        self.assertEqual(kinds["planted"], [("b + c", "b - c"), ("g();", "")])
        self.assertIn("(cadre::mutation::Is(1) ? (b - c) : (b + c))", instrumented)
        self.assertIn("if (cadre::mutation::Is(2)) {  } else {", instrumented)
        instrumented, _ = mutate("void f() {\n  g();\n  a();\n  g();\n}\n", [("second", "g();", "", "a();\n  ")])
        self.assertIn("if (cadre::mutation::Is(1)) {  } else {", instrumented.splitlines()[3])
        with self.assertRaises(ValueError):
            mutate(text, [("missing", "b * c", "b")])


class SourcesTest(unittest.TestCase):
    """What holds for every source that is mutated."""

    @classmethod
    def setUpClass(cls):
        cls.generated = list(generate.generate(ROOT, sources()))
        cls.mutants = [mutant for _, _, mutants in cls.generated for mutant in mutants]

    def test_lines_without_mutants_are_unchanged(self):
        for path, text, mutants in self.generated:
            before = (ROOT / path).read_text().splitlines()
            after = text.decode().splitlines()
            self.assertEqual(len(before), len(after), path)
            touched = set()
            for mutant in mutants:
                touched.update(range(mutant.line, mutant.line + mutant.before.count("\n") + 1))
            for number, (old, new) in enumerate(zip(before, after), start=1):
                if old != new and number not in touched:
                    # A declaration whose constants are mutated in another line is no longer constexpr.
                    self.assertEqual(old.replace("constexpr", "const", 1), new, f"{path}:{number}")

    def test_every_mutant_is_in_the_source_once(self):
        numbers = []
        for _, text, mutants in self.generated:
            calls = re.findall(r"cadre::mutation::(?:Is\((\d+)|(?:Less|Greater|Unchecked)\w*\((\d+)|Constant\((\d+), (\d+), (\d+))",
                               text.decode())
            numbers += sorted(int(number) for call in calls for number in call if number not in ("", "0"))
        self.assertEqual(numbers, sorted(mutant.number for mutant in self.mutants))

    def test_ids_are_unique(self):
        ids = [mutant.id for mutant in self.mutants]
        self.assertEqual(len(ids), len(set(ids)))

    def test_planted_bugs_are_in_mutated_sources(self):
        names = {mutant.name for mutant in self.mutants}
        self.assertEqual([bug.name for bug in planted.BUGS if bug.name not in names], [])

    def test_equivalent_mutants_exist_and_are_justified(self):
        for entry in equivalent.EQUIVALENT:
            fitting = [m.id for m in self.mutants if entry.fits(m.path, m.text, m.before, m.after)]
            self.assertEqual(len(fitting), entry.sites, entry)
            self.assertGreater(len(entry.reason), 20, entry)


if __name__ == "__main__":
    unittest.main()
