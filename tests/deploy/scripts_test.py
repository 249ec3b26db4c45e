#!/usr/bin/env python3
"""Every shell script parses, passes shellcheck, can be run as it is, and teaches with --help.

usage: scripts_test.py REPOSITORY
"""

import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
SCRIPTS = (
    "deploy/setup.sh",
    "deploy/cuda_toolkit.sh",
    "deploy/build.sh",
    "deploy/demo.sh",
    "bench/gpu_bundle.sh",
    "bench/gpu_check.sh",
    "tests/run.sh",
    ".ci/run",
)


def run(*command):
    return subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


class ScriptsTest(unittest.TestCase):
    def test_the_list_is_complete(self):
        found = {
            str(path.relative_to(ROOT))
            for folder in ("deploy", "tests", "bench", ".ci")
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.read_bytes()[:20].split(b"\n")[0].endswith(b"bash")
        }
        self.assertEqual(found, set(SCRIPTS))

    def test_bash_parses_them(self):
        for script in SCRIPTS:
            with self.subTest(script):
                result = run("bash", "-n", script)
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_shellcheck_has_nothing_to_say(self):
        result = run("shellcheck", *SCRIPTS)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_they_are_executable(self):
        for script in SCRIPTS:
            self.assertTrue((ROOT / script).stat().st_mode & 0o100, script)

    def test_they_stop_at_the_first_error(self):
        for script in SCRIPTS:
            self.assertIn("\nset -euo pipefail\n", (ROOT / script).read_text(), script)

    def test_help(self):
        for script in SCRIPTS:
            with self.subTest(script):
                result = run("bash", script, "--help")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertRegex(result.stdout, r"\.sh (\[|[A-Z])")


class BadInputTest(unittest.TestCase):
    def assertRefused(self, word, *command):
        result = run("bash", *command)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(word, result.stderr)

    def test_setup_refuses_an_unknown_group_before_it_installs_anything(self):
        self.assertRefused("unknown group 'biuld'", "deploy/setup.sh", "runtime", "biuld")

    def test_build_refuses_an_unknown_option(self):
        self.assertRefused("unknown option '--fast'", "deploy/build.sh", "--fast")

    def test_build_refuses_an_option_without_value(self):
        self.assertRefused("--dir needs a value", "deploy/build.sh", "--dir")

    def test_build_refuses_an_unknown_way_to_build_for_gpus(self):
        self.assertRefused("not 'MAYBE'", "deploy/build.sh", "--cuda", "MAYBE")

    def test_tests_refuse_an_unknown_argument(self):
        self.assertRefused("unknown argument 'fast'", "tests/run.sh", "fast")

    def test_tests_refuse_an_unknown_sanitizer(self):
        self.assertRefused("not 'memory'", "tests/run.sh", "--sanitize", "memory")

    def test_a_bundle_needs_a_build_folder(self):
        self.assertRefused("is no build folder", "bench/gpu_bundle.sh", "deploy", "out.tar.zst")
        self.assertRefused("needs a build folder", "bench/gpu_bundle.sh", "build")

    def test_the_gpu_check_needs_a_bundle(self):
        self.assertRefused("deploy is no bundle", "bench/gpu_check.sh", "deploy")
        self.assertRefused("there is no 'gone'", "bench/gpu_check.sh", "gone")
        self.assertRefused("--out needs a value", "bench/gpu_check.sh", "--out")
        self.assertRefused("unknown option '--fast'", "bench/gpu_check.sh", "--fast")

    def test_tests_refuse_fuzzing_for_no_time(self):
        self.assertRefused("not '0'", "tests/run.sh", "--fuzz-seconds", "0")


if __name__ == "__main__":
    unittest.main()
