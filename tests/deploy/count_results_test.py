#!/usr/bin/env python3
"""tests/count_results.py counts the results in CTest's JUnit files.

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


def count(*files, cases=None):
    """(exit code, last line, all output). `cases`: contents of GoogleTest's XML files."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, inside in enumerate(files):
            paths.append(pathlib.Path(folder) / f"{number}.xml")
            paths[-1].write_text(f"<testsuite>{''.join(inside)}</testsuite>")
        options = []
        if cases is not None:
            options = ["--cases", folder + "/cases"]
            pathlib.Path(folder, "cases").mkdir()
            for number, text in enumerate(cases):
                pathlib.Path(folder, "cases", f"{number}.xml").write_text(text)
        result = subprocess.run(
            [sys.executable, SCRIPT, *options, *paths], capture_output=True, text=True, timeout=60
        )
        lines = result.stdout.splitlines()
        return result.returncode, lines[-1] if lines else "", result.stdout + result.stderr


class CountResultsTest(unittest.TestCase):
    def test_adds_up_programs_and_files(self):
        code, line, _ = count(
            [case("a", "run", "[==========] 3 tests\n[  PASSED  ] 3 tests.\n"), case("b", "run")],
            [case("c", "run", "....\nRan 4 tests in 0.1s\n\nOK\n")],
        )
        self.assertEqual((code, line), (0, "8 passed, 0 failed, 0 skipped"))

    def test_failed_and_skipped_programs(self):
        two_skipped = "[  SKIPPED ] 2 tests, listed:\n[  FAILED  ] 3 tests, listed:\n"
        skipped = '<skipped message="SKIP_RETURN_CODE=77"/>'
        all_skipped = '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
        for name, exit_code, result, *cases in (
            ("failed and skipped cases", 1, "1 passed, 3 failed, 2 skipped",
             case("a", "fail", "[  PASSED  ] 1 test.\n" + two_skipped)),
            ("a crash after the summary is a failure", 1, "5 passed, 1 failed, 0 skipped",
             case("a", "fail", "[  PASSED  ] 5 tests.\nSanitizer: leak\n")),
            ("a program that cannot start is a failure", 1, "0 passed, 1 failed, 0 skipped",
             case("a", "notrun", inner='<skipped message="Unable to find executable"/>')),
            ("skipped and disabled programs", 0, "1 passed, 0 failed, 2 skipped",
             case("a", "notrun", inner=skipped), case("b", "disabled"), case("c", "run")),
            ("a program with all cases skipped", 0, "1 passed, 0 failed, 3 skipped",
             case("a", "notrun", "[  PASSED  ] 0 tests.\n[  SKIPPED ] 3 tests, listed\n", all_skipped),
             case("b", "run")),
            ("no result is a failure", 1, "0 passed, 0 failed, 0 skipped"),
        ):  # fmt: skip
            with self.subTest(name):
                self.assertEqual(count(cases)[:2], (exit_code, result))
        self.assertIn("failed: a_test", count([case("a_test", "fail")])[2])

    def test_lists_skipped_cases_with_reasons(self):
        text = (
            '<testsuites><testsuite name="A"><testcase name="Runs" classname="A"/>'
            '<testcase name="Waits" classname="A" result="skipped">'
            '<skipped message="a_test.cc:7&#x0A;no CUDA device: cudaErrorNoDevice&#x0A;"/>'
            "</testcase></testsuite></testsuites>"
        )
        _, line, output = count([case("b", "run")], cases=[text, text, "<testsuites><test"])
        self.assertEqual(line, "1 passed, 0 failed, 0 skipped")
        listed = [line for line in output.splitlines() if line.startswith("skipped:")]
        self.assertEqual(listed, ["skipped: A.Waits: no CUDA device: cudaErrorNoDevice"])

    def test_skipped_cases_of_one_suite_share_a_line(self):
        inside = "".join(
            f'<testcase name="{name}" classname="A"><skipped message="a.cc:7&#x0A;no GPU"/></testcase>'
            for name in ("One", "Two")
        )
        _, _, output = count(
            [case("b", "run")], cases=[f"<testsuites><testsuite>{inside}</testsuite></testsuites>"]
        )
        self.assertIn("skipped: A.{One,Two}: no GPU\n", output)

    def test_lists_skipped_cases_of_python_programs(self):
        output = (
            "test_a (__main__.A.test_a) ... ok\n"
            "test_b (__main__.A.test_b)\nChecks b. ... skipped 'no kubectl'\n"
            "test_c (__main__.A) ... skipped 'no kubectl'\n\nRan 3 tests in 1s\n\nOK (skipped=2)\n"
        )
        _, line, text = count([case("a", "run", output)])
        self.assertEqual(line, "1 passed, 0 failed, 2 skipped")
        self.assertIn("skipped: A.{test_b,test_c}: no kubectl\n", text)

    def test_without_files_prints_the_usage(self):
        code, _, text = count()
        self.assertEqual(code, 1)
        self.assertIn("usage:", text)


if __name__ == "__main__":
    unittest.main()
