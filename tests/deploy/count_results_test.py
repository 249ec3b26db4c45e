#!/usr/bin/env python3
"""tests/count_results.py counts what CTest's JUnit files say, and never makes a failure pass.

usage: count_results_test.py REPOSITORY
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(sys.argv.pop(1)).resolve() / "tests/count_results.py"


def case(name, status, output="", inner=""):
    return (
        f'<testcase name="{name}" classname="{name}" status="{status}">{inner}'
        f"<system-out>{output}</system-out></testcase>"
    )


def count(*files):
    """(exit code, last line, all output)."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, cases in enumerate(files):
            paths.append(pathlib.Path(folder) / f"{number}.xml")
            paths[-1].write_text(f"<testsuite>{''.join(cases)}</testsuite>")
        result = subprocess.run(
            [sys.executable, SCRIPT, *paths], capture_output=True, text=True, timeout=60
        )
        lines = result.stdout.splitlines()
        return result.returncode, lines[-1] if lines else "", result.stdout + result.stderr


class CountResultsTest(unittest.TestCase):
    def test_adds_up_cases_over_programs_and_files(self):
        code, line, _ = count(
            [case("a", "run", "[==========] 3 tests\n[  PASSED  ] 3 tests.\n"), case("b", "run")],
            [case("c", "run", "....\nRan 4 tests in 0.1s\n\nOK\n")],
        )
        self.assertEqual((code, line), (0, "8 passed, 0 failed, 0 skipped"))

    def test_counts_failed_and_skipped_cases_of_a_program(self):
        output = "[  PASSED  ] 1 test.\n[  SKIPPED ] 2 tests, listed:\n[  FAILED  ] 3 tests, listed:\n"
        code, line, text = count([case("a_test", "fail", output)])
        self.assertEqual((code, line), (1, "1 passed, 3 failed, 2 skipped"))
        self.assertIn("failed: a_test", text)

    def test_a_program_that_died_after_its_summary_has_failed(self):
        code, line, _ = count([case("a", "fail", "[  PASSED  ] 5 tests.\nSanitizer: leak\n")])
        self.assertEqual((code, line), (1, "5 passed, 1 failed, 0 skipped"))

    def test_a_program_that_could_not_start_has_failed(self):
        inner = '<skipped message="Unable to find executable"/>'
        code, line, _ = count([case("a", "notrun", inner=inner)])
        self.assertEqual((code, line), (1, "0 passed, 1 failed, 0 skipped"))

    def test_skipped_and_disabled_programs(self):
        inner = '<skipped message="SKIP_RETURN_CODE=77"/>'
        code, line, _ = count(
            [case("a", "notrun", inner=inner), case("b", "disabled"), case("c", "run")]
        )
        self.assertEqual((code, line), (0, "1 passed, 0 failed, 2 skipped"))

    def test_nothing_at_all_is_no_success(self):
        self.assertEqual(count([])[:2], (1, "0 passed, 0 failed, 0 skipped"))

    def test_no_file_teaches(self):
        code, _, text = count()
        self.assertEqual(code, 1)
        self.assertIn("usage:", text)


if __name__ == "__main__":
    unittest.main()
