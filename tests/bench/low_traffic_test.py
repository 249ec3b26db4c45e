#!/usr/bin/env python3
"""bench/low_traffic.py trains what its output lacks and compares; bench/text_tokens.py divides texts.

usage: low_traffic_test.py REPOSITORY CADRE
"""

import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
CADRE = os.path.abspath(sys.argv.pop(1))
SCRIPT = ROOT / "bench/low_traffic.py"
sys.path.insert(0, str(SCRIPT.parent))

import low_traffic  # noqa: E402
import text_tokens  # noqa: E402

# Takes the place of `cadre`: records the run file and prints a summary. Fails for seed 9.
PROGRAM = """#!/bin/sh
cat "$2" >> "$(dirname "$0")/specs"
if grep -q '^seed: 9$' "$2"; then echo 'no memory' >&2; exit 1; fi
echo 'progress'
echo '{"parameters": 10, "steps": 5, "rounds_committed": 2, "test_accuracy": 0.5, "test_loss": 1.5,' \
     '"traffic_factor": 100, "bytes_up": 3, "bytes_down": 4, "seconds": 0.1}'
"""


def all_runs():
    return [low_traffic.Run(*pair, 1) for pair in low_traffic.selected([])]


def line(setting, seed, accuracy, loss, factor=0.0):
    run = low_traffic.Run("fashion-2", low_traffic.BASELINE, seed)
    return {**run.key(), "setting": setting, "parameters": 1234567, "steps": 1000,
            "accuracy": accuracy, "loss": loss, "traffic_factor": factor}  # fmt: skip


class RunsTest(unittest.TestCase):
    def test_run_files_are_valid(self):
        with tempfile.TemporaryDirectory() as folder:
            for number, run in enumerate(all_runs()):
                file = pathlib.Path(folder, f"{number}.textproto")
                file.write_text(run.spec(tokens=folder))
                workers = low_traffic.EXPERIMENTS[run.experiment].groups
                command = [CADRE, "plan", file, "--workers", str(workers), "--alpha", "5e-5",
                           "--bandwidth", "1e9", "-o", "json"]  # fmt: skip
                result = subprocess.run(command, capture_output=True, text=True, timeout=100)
                self.assertEqual(result.returncode, 0, f"{run}: {result.stderr}")

    def test_equal_samples_in_a_step(self):
        for run in all_runs():
            spec = run.spec(tokens="t").splitlines()
            e = low_traffic.EXPERIMENTS[run.experiment]
            synchronous = run.setting in low_traffic.BASELINES
            batch, cluster = (e.groups * e.batch, "ranks_per_group") if synchronous else (e.batch, "groups")
            self.assertIn(f"batch_per_group: {batch}", spec)
            self.assertIn(f"cluster {{ {cluster}: {e.groups} keep_plan: true }}", spec)
            self.assertEqual("averaging {  }" in spec, synchronous)


class MeasureTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        program = self.folder / "cadre"
        program.write_text(PROGRAM)
        program.chmod(0o700)
        self.output = self.folder / "lines"

    def measure(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, "--bin", self.folder, "--output", self.output, *arguments],
                              capture_output=True, text=True, timeout=100)  # fmt: skip

    def lines(self):
        return [json.loads(text) for text in self.output.read_text().splitlines()]

    def test_continues_with_what_is_missing(self):
        first = self.measure("fashion-2/synchronous", "--seeds", "1,2")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual([(l["setting"], l["seed"]) for l in self.lines()],
                         [("synchronous", 1), ("synchronous", 2)])  # fmt: skip
        again = self.measure("fashion-2/synchronous", "fashion-4/synchronous", "--seeds", "1,2,3")
        self.assertEqual([json.loads(text) for text in again.stdout.splitlines()], self.lines()[2:])
        self.assertEqual([(l["experiment"], l["seed"]) for l in self.lines()[2:]],
                         [("fashion-4", 1), ("fashion-4", 2), ("fashion-2", 3), ("fashion-4", 3)])  # fmt: skip
        self.assertEqual((self.folder / "specs").read_text().count("\nseed: "), 6)

    def test_lines_of_other_settings_do_not_count(self):
        self.assertEqual(self.measure("fashion-2/synchronous", "--seeds", "1").returncode, 0)
        changed = self.lines()[0]
        self.output.write_text(json.dumps({**changed, "stop": "epochs: 1"}) + "\n")
        self.assertEqual(self.measure("fashion-2/synchronous", "--seeds", "1").returncode, 0)
        self.assertEqual(self.lines()[1], changed)

    def test_failed_run(self):
        result = self.measure("fashion-2/synchronous", "--seeds", "1,9,2")
        self.assertEqual(result.returncode, 1)
        self.assertIn("seed 9:\nno memory", result.stderr)
        self.assertEqual([l["seed"] for l in self.lines()], [1])

    def test_unknown_names(self):
        for word, text in (("fashion", "unknown experiment 'fashion'"), ("gpt-2/x", "unknown setting 'x' of gpt-2")):
            result = self.measure(word)
            self.assertEqual(result.returncode, 1)
            self.assertIn(text, result.stderr)


class SummarizeTest(unittest.TestCase):
    def test_differences_over_common_seeds(self):
        lines = [line("synchronous", 1, 0.90, 0.5), line("synchronous", 2, 0.92, 0.3),
                 line("a", 1, 0.91, 0.52, 1000.4), line("a", 2, 0.92, 0.32, 1001.4), line("a", 3, 0.5, 9, 1000),
                 line("b", 7, 0.8, 1)]  # fmt: skip
        self.assertEqual(low_traffic.summarize(lines).splitlines(), [
            "fashion-2: 2 groups, 1,234,567 parameters, T = 1,000",
            "",
            "| averaging | seeds | traffic factor | accuracy, % | difference | loss | difference |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            "| synchronous | 2 | - | 91.00 (90.00 to 92.00) | - | 0.4000 (0.3000 to 0.5000) | - |",
            "| a | 3 | 1,001 | 77.67 (50.00 to 92.00) | +0.50 | 3.2800 (0.3200 to 9.0000) | +5.00 % |",
            "| b | 1 | 0 | 80.00 | - | 1.0000 | - |",
        ])  # fmt: skip

    def test_recorded_results(self):
        results = ROOT / "bench/results/low-traffic.jsonl"
        keys = [run.key() for run in all_runs()]
        for recorded in low_traffic.read_lines(results):
            self.assertTrue(any({**key, "seed": recorded["seed"]}.items() <= recorded.items() for key in keys),
                            recorded)  # fmt: skip


class TextTokensTest(unittest.TestCase):
    def test_pieces(self):
        text = bytes(range(10)) * (4 * text_tokens.PIECE // 10) + b"end"
        train, test = text_tokens.split(text, 2)
        self.assertEqual(len(train) + len(test), len(text))
        self.assertEqual(test[: text_tokens.PIECE], text[text_tokens.PIECE : 2 * text_tokens.PIECE])
        self.assertEqual(train[: text_tokens.PIECE], text[: text_tokens.PIECE])

    def test_words_by_falling_frequency(self):
        train, test = text_tokens.encode(b"the cat, the dog. The the cat,", b"the bird, a cat", 4)
        # "cat" precedes "," because it occurs first; the others are 0.
        self.assertEqual(train, bytes([1, 0, 2, 0, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 3, 0]))
        self.assertEqual(test, bytes([1, 0, 0, 0, 3, 0, 0, 0, 2, 0]))

    def test_compressed(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, data in (("plain", b"abc"), ("gzip", gzip.compress(b"abc"))):
                file = pathlib.Path(folder, name)
                file.write_bytes(data)
                self.assertEqual(text_tokens.content(file), b"abc")


if __name__ == "__main__":
    unittest.main()
