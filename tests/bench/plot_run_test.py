#!/usr/bin/env python3
"""bench/plot_run.py draws recorded updates and reports errors in them.

usage: plot_run_test.py REPOSITORY
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
SCRIPT = ROOT / "bench/plot_run.py"
sys.path.insert(0, str(SCRIPT.parent))

import plot_run  # noqa: E402


def updates():
    """Two groups, ten rounds of twenty steps, an evaluation after every fifth round."""
    for version in range(1, 11):
        run = {"run": "r1", "name": "demo", "version": version, "step": 20 * version,
               "total_steps": 200, "total_epochs": 4.0, "epoch": version * 0.4,
               "loss": 2.0 / version, "something_new": [1, 2]}  # fmt: skip
        if version >= 5:
            run["test"] = {
                "version": version // 5 * 5, "step": version // 5 * 100,
                "samples": "10000", "accuracy": (80 + version // 5 * 5) / 100, "loss": 0.4,
            }  # fmt: skip
        groups = [
            {"run": "r1", "step": 20 * version, "loss": 2.1 / version},
            {"run": "r1", "group": 1, "step": 20 * version - 3, "loss": 1.9 / version},
        ]
        yield {"time_ms": str(1000 * version), "run": run, "groups": groups}


def lines(items):
    return [json.dumps(item) for item in items]


def plot(text, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        input=text, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


class ReadTest(unittest.TestCase):
    def test_reads_every_point_once(self):
        curves = plot_run.read(lines(updates()) + lines(updates()))
        self.assertEqual(curves.name, "demo")
        self.assertEqual(sorted(curves.loss), list(range(20, 201, 20)))
        self.assertEqual(curves.loss[40], 1.0)
        self.assertEqual(curves.accuracy, {100: 0.85, 200: 0.9})
        self.assertEqual(set(curves.group_loss), {0, 1})
        self.assertEqual(curves.group_loss[1][17], 1.9)

    def test_epochs_if_the_run_states_its_length(self):
        curves = plot_run.read(lines(updates()))
        self.assertEqual((curves.in_epochs(), curves.epoch_of(50)), (True, 1.0))
        curves = plot_run.read(['{"run": {"step": 7, "loss": 1}}'])
        self.assertEqual((curves.in_epochs(), curves.epoch_of(7)), (False, 7))

    def test_reads_camel_case_and_numbers_in_strings(self):
        run = '{"step": "8", "totalSteps": "16", "totalEpochs": 2, "loss": 1}'
        curves = plot_run.read(['{"run": %s}' % run])
        self.assertEqual((curves.total_steps, curves.total_epochs), (16, 2.0))

    def test_null_equals_missing(self):
        update = '{"run": {"step": 8, "loss": null, "test": null}, "groups": null}'
        curves = plot_run.read([update, '{"run": null}', '{"run": {"step": 9, "loss": 1}}'])
        self.assertEqual((curves.loss, curves.accuracy), ({9: 1.0}, {}))

    def test_accuracy_of_zero_is_a_point(self):
        curves = plot_run.read(['{"run": {"test": {"step": 3, "samples": "10"}}}'])
        self.assertEqual(curves.accuracy, {3: 0.0})

    def test_ignores_an_incomplete_last_line(self):
        curves = plot_run.read(lines(updates()) + ['{"run": {"st'])
        self.assertEqual(len(curves.loss), 10)

    def test_reports_a_bad_line_in_the_middle(self):
        for line, error in (
            ("step 1 loss 2", "is not JSON"),
            ("[1]", "is not a status update but list"),
            ('{"run": {"step": "many"}}', "is not a status update: "),
        ):
            with self.assertRaisesRegex(plot_run.InputError, "line 1 " + error):
                plot_run.read([line] + lines(updates()))

    def test_smoothing_keeps_a_constant_and_the_length(self):
        self.assertEqual(plot_run.smooth([2.0] * 7), [2.0] * 7)
        self.assertEqual(plot_run.smooth([1.0, 5.0, 3.0]), [1.0, 3.0, 3.0])


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.png = self.folder / "run.png"

    def test_draws_a_png_from_stdin(self):
        result = plot("\n".join(lines(updates())), "-o", str(self.png))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        header = self.png.read_bytes()[:24]
        self.assertEqual(header[:8], b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", header[16:24])
        self.assertGreater(min(width, height), 500)

    def test_draws_a_run_without_evaluation_from_a_file(self):
        source = self.folder / "updates.jsonl"
        source.write_text('{"run": {"step": 7, "loss": 1}}\n{"run": {"step": 9, "loss": 0.5}}\n')
        result = plot("", "-o", str(self.png), str(source))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertGreater(self.png.stat().st_size, 1000)

    def test_empty_input_is_rejected_with_a_reason(self):
        for text in ("", "\n", '{"run": {"run": "r1", "state": "QUEUED"}}\n'):
            result = plot(text, "-o", str(self.png))
            self.assertEqual(result.returncode, 1)
            self.assertIn("plot_run: nothing to draw", result.stderr)
            self.assertFalse(self.png.exists())

    def test_missing_file_and_folder(self):
        self.assertIn("No such file", plot("", "gone.jsonl").stderr)
        target = str(self.folder / "gone/run.png")
        self.assertIn("No such file", plot("\n".join(lines(updates())), "-o", target).stderr)

    def test_help(self):
        result = plot("", "--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("cadre watch RUN -o json", result.stdout)


if __name__ == "__main__":
    unittest.main()
