#!/usr/bin/env python3
"""Shell scripts pass shellcheck and have --help; configuring without GoogleTest works.

usage: scripts_test.py REPOSITORY
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
SCRIPTS = (
    "deploy/setup.sh",
    "deploy/cuda_toolkit.sh",
    "deploy/build.sh",
    "deploy/package.sh",
    "deploy/wheel.sh",
    "deploy/manuals.sh",
    "deploy/sbom.sh",
    "deploy/demo.sh",
    "bench/gpu_bundle.sh",
    "bench/gpu_check.sh",
    "tests/run.sh",
    "tests/upgrade.sh",
    ".ci/run",
)
SBATCH = "deploy/slurm/cadre.sbatch"


def run(*command):
    return subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )


class ScriptsTest(unittest.TestCase):
    def test_list_is_complete(self):
        found = {
            str(path.relative_to(ROOT))
            for folder in ("deploy", "tests", "bench", ".ci")
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.read_bytes()[:20].split(b"\n")[0].endswith(b"bash")
        }
        # Slurm passes no arguments, so this script has no help.
        self.assertEqual(found, {*SCRIPTS, SBATCH})

    def test_shellcheck(self):
        result = run("shellcheck", *SCRIPTS, SBATCH)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_executable_and_strict(self):
        for script in SCRIPTS:
            self.assertTrue((ROOT / script).stat().st_mode & 0o100, script)
            self.assertIn("\nset -euo pipefail\n", (ROOT / script).read_text(), script)

    def test_help(self):
        for script in SCRIPTS:
            with self.subTest(script):
                result = run("bash", script, "--help")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertRegex(result.stdout, r"\.sh (\[|[A-Z])")

    def test_invalid_arguments(self):
        for text, *command in (
            ("unknown group 'biuld'", "deploy/setup.sh", "runtime", "biuld"),
            ("unknown option '--fast'", "deploy/build.sh", "--fast"),
            ("--dir requires a value", "deploy/build.sh", "--dir"),
            ("not 'MAYBE'", "deploy/build.sh", "--cuda", "MAYBE"),
            ("unknown argument 'fast'", "tests/run.sh", "fast"),
            ("not 'memory'", "tests/run.sh", "--sanitize", "memory"),
            ("not '0'", "tests/run.sh", "--fuzz-seconds", "0"),
            ("--dir requires a value", "tests/upgrade.sh", "--dir"),
            ("is not a build folder", "bench/gpu_bundle.sh", "--build", "deploy", "out.tar.xz"),
            ("requires the path of the bundle", "bench/gpu_bundle.sh"),
            ("an archive ends in .tar.xz", "bench/gpu_bundle.sh", "out.tar.zst"),
            ("deploy exists and is not a bundle", "bench/gpu_bundle.sh", "deploy"),
            ("unknown option '--fast'", "bench/gpu_bundle.sh", "--fast", "out.tar.xz"),
            ("--architectures requires a value", "deploy/build.sh", "--architectures"),
            ("deploy is not a bundle", "bench/gpu_check.sh", "deploy"),
            ("there is no 'gone'", "bench/gpu_check.sh", "gone"),
            ("--out: expected one argument", "bench/gpu_check.sh", "--out"),
            ("unrecognized arguments: --fast", "bench/gpu_check.sh", "--fast"),
        ):
            with self.subTest(command):
                result = run("bash", *command)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(text, result.stderr)


    def test_gpu_check_in_any_folder(self):
        source = ROOT / "bench/gpu_check.sh"
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "link").symlink_to(source)
            self.assertIn("usage: gpu_check.sh", run("bash", folder / "link", "--help").stdout)
            copy = shutil.copy(source, folder / "copy")
            self.assertIn("neither beside this script", run("bash", copy, "--help").stderr)

    def test_gpu_bundle_refuses_other_builds(self):
        for text, line in (
            ("CADRE_CUDA_ARCHITECTURES=80-virtual;90a-real, but a bundle requires 90a-real",
             "CADRE_CUDA_ARCHITECTURES:STRING=80-virtual;90a-real"),
            ("CMAKE_BUILD_TYPE=Debug, but a bundle requires Release",
             "CADRE_CUDA_ARCHITECTURES:STRING=90a-real\nCMAKE_BUILD_TYPE:STRING=Debug"),
        ):  # fmt: skip
            with tempfile.TemporaryDirectory() as build, self.subTest(text):
                pathlib.Path(build, "CMakeCache.txt").write_text(line + "\n")
                result = run("bash", "bench/gpu_bundle.sh", "--build", build, "out.tar.xz")
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(text, result.stderr)


class ConfigureTest(unittest.TestCase):
    """Configures the project where GoogleTest is not installed."""

    def configure(self, *options):
        with tempfile.TemporaryDirectory() as build:
            result = run(
                "cmake", "-S", ROOT, "-B", build, "-DCADRE_CUDA=OFF",
                "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON", *options,
            )  # fmt: skip
            return result, pathlib.Path(build, "CMakeCache.txt").read_text()

    def test_tests_are_off_by_default(self):
        result, cache = self.configure()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(cache, r"CADRE_TESTS:BOOL=(0|OFF|FALSE)\n")
        self.assertIn("GoogleTest is not installed (deploy/setup.sh test)", result.stdout)
        # tests/run.sh lists this line.
        line = "-- CUDA back end: not built, "
        self.assertIn(line, result.stdout)
        self.assertIn(line, (ROOT / "tests/run.sh").read_text())

    def test_error_names_the_remedy(self):
        result, _ = self.configure("-DCADRE_TESTS=ON")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("Run deploy/setup.sh test", " ".join(result.stderr.split()))


if __name__ == "__main__":
    unittest.main()
