#!/usr/bin/env python3
"""bench/compare.py matches the lines of two files by their parameters, and runs two programs alternately.

usage: compare_test.py REPOSITORY
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(sys.argv.pop(1)).resolve() / "bench/compare.py"


def compare(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60)


class CompareTest(unittest.TestCase):
    def test_files(self):
        def line(model, **values):
            return json.dumps({"bench": "engine", "cpu": "x", "model": model, "batch": 4, **values}) + "\n"

        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder, name) for name in ("ours", "theirs")]
            files[0].write_text(line("a", step_ms=10, part={"gbs": 3}) + line("a", step_ms=20) + line("b", step_ms=1))
            files[1].write_text(line("a", step_ms=30, part={"gbs": 6}) + line("c", step_ms=1))
            result = compare(*files)
        self.assertEqual([line.split() for line in result.stdout.splitlines()], [
            ["bench=engine", "model=a", "batch=4"], ["step_ms", "15", "30", "0.500"], ["part.gbs", "3", "6", "0.500"],
            "1 compared; only in the first: 1, only in the second: 1".split()], result.stderr)

    def test_commands(self):
        result = compare("--rounds", "3", "--field", "a", "--their-field", "b", """echo '{"a": 3}'""",
                         """echo '{"b": 2}'""")
        line = json.loads(result.stdout)
        self.assertEqual((line["ratio"], line["theirs_all"]), (1.5, [2, 2, 2]))
        failed = compare("--field", "a", "sh -c 'echo why >&2; exit 7'", "true")
        self.assertEqual(failed.returncode, 1)
        self.assertIn("exit code 7:\nwhy", failed.stderr)


if __name__ == "__main__":
    unittest.main()
