#!/usr/bin/env python3
"""bench/gpu_check.sh ends in time and keeps every finished result, whatever hangs.

usage: gpu_check_limits_test.py REPOSITORY

The whole program runs against a bundle of scripts and a driver that is compiled for the test.
"""

import contextlib
import io
import json
import lzma
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from fake_gpu_bundle import FakeBundle, by_name, read_lines  # noqa: E402


def exists(pid):
    """Whether a process runs. A zombie does not."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.fake = FakeBundle(self.folder)
        self.out = self.folder / "results.jsonl"

    def start(self, *arguments, bundle=None, **options):
        command = ["bash", ROOT / "bench/gpu_check.sh", "--out", self.out, *arguments]
        return subprocess.Popen(
            [*map(str, command), str(bundle or self.fake.bundle)], env=self.fake.environment,
            stdin=subprocess.DEVNULL, text=True, **options,
        )  # fmt: skip

    def check(self, *arguments, bundle=None, seconds=60):
        """Runs the program, which must end in time. Returns exit code, results and seconds."""
        begin = time.monotonic()
        process = self.start(*arguments, bundle=bundle, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.text, self.errors = process.communicate(timeout=seconds)
        took = time.monotonic() - begin
        self.lines = read_lines(self.out)
        return process.returncode, by_name(self.lines), took


class LimitsTest(ProgramTest):
    def test_crash_and_hang_within_twenty_seconds(self):
        pids = self.folder / "pids"
        self.fake.environment["PIDS"] = str(pids)
        self.fake.add_test("device_test", First="pass", Second="crash", Third="pass")
        self.fake.add_test("kernels_test", First="pass", Second="hang", Third="pass")
        code, found, took = self.check("--only", "tests", "--seconds", "20", seconds=20)
        self.assertLess(took, 20)
        self.assertEqual(code, 1)
        self.assertEqual(found["tests", "device_test/A.First"][0], "pass")
        self.assertEqual(found["tests", "device_test/A.Second"], ("fail", "during this case: ended by SIGSEGV"))
        self.assertEqual(found["tests", "device_test/A.Third"][0], "pass")
        self.assertEqual(found["tests", "kernels_test/A.First"][0], "pass")
        self.assertIn("when the time for all checks was over", found["tests", "kernels_test/A.Second"][1])
        self.assertEqual(found["tests", "kernels_test"], ("skip", "1 cases did not run: no time was left"))
        self.assertEqual(self.lines[-1]["line"], "summary")
        left = [pid for pid in pids.read_text().split() if exists(pid)]
        self.assertEqual(left, [])

    def test_driver_that_hangs(self):
        self.fake.environment["FAKE_CUDA"] = "hang"
        self.fake.environment["FAKE_SMI_HANGS"] = "/"
        self.fake.torch("import time\ntime.sleep(1000)")
        self.fake.add_test("a_test", First="pass")
        code, found, took = self.check("--only", "starts,tests", "--seconds", "20", seconds=20)
        self.assertEqual(code, 1)
        self.assertEqual(self.lines[0]["line"], "machine")
        self.assertLess(self.lines[0]["at"], 15)
        self.assertEqual({"gpu", "torch", "nvidia_smi", "nvidia_smi_q"}, set(self.lines[0]["not_known_in_time"]))
        self.assertIn("the NVIDIA driver hangs", found["check", "driver"][1])
        self.assertEqual(found["starts", "a_test"][0], "pass")
        self.assertEqual(found["tests", "all of it"][0], "skip")
        self.assertLess(took, 20)

    def test_reader_of_the_progress_that_hangs(self):
        # Printing to a full pipe blocks.
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
        process = self.start("--only", "starts", "--seconds", "10", stdout=writer)
        os.close(writer)
        self.assertEqual(process.wait(10.5), 1)
        lines = read_lines(self.out)
        self.assertEqual(lines[0]["card"], "Fake GPU")
        self.assertEqual(lines[-1]["reason"], "did not end in 10 s")

    def interrupt(self, number):
        pids = self.folder / "pids"
        self.fake.environment["PIDS"] = str(pids)
        self.fake.add_test("a_test", First="pass", Second="hang")
        process = self.start("--only", "tests", stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not pids.exists() or not pids.read_text().endswith(" "):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(number)
        self.assertEqual(process.wait(10), 1)
        lines = read_lines(self.out)
        found = by_name(lines)
        self.assertEqual(found["tests", "a_test/A.First"][0], "pass")
        self.assertIn(signal.Signals(number).name, found["check", "interrupted"][1])
        self.assertEqual([pid for pid in pids.read_text().split() if exists(pid)], [])

    def test_sigterm(self):
        self.interrupt(signal.SIGTERM)

    def test_sigint(self):
        self.interrupt(signal.SIGINT)

    def test_without_a_gpu_programs_are_only_started(self):
        self.fake.environment["FAKE_CUDA"] = "none"
        self.fake.add_test("a_test", First="pass")
        self.fake.add_program("cadre", "[ $1 = --help ]")
        code, found, took = self.check()
        self.assertEqual(code, 3)
        self.assertLess(took, 10)
        self.assertEqual(found["starts", "cadre"][0], "pass")
        self.assertEqual(found["starts", "a_test"][0], "pass")
        for section in ("smoke", "tests", "ranks", "demo", "bench", "sanitizer"):
            result, reason = found[section, "all of it"]
            self.assertEqual((result, reason), ("skip", "the NVIDIA driver does not start: cuInit returns 100"))

    def test_results_are_appended(self):
        self.fake.add_test("a_test", First="pass")
        self.check("--only", "tests")
        self.assertEqual(self.check("--only", "tests:a_test/A.*")[0], 0)
        kinds = [line["line"] for line in self.lines]
        self.assertEqual(kinds, ["machine", "bundle", "result", "summary"] * 2)
        self.assertEqual(self.lines[0]["card"], "Fake GPU")
        self.assertEqual(self.lines[-1]["counts"], {"pass": 1, "fail": 0, "skip": 0})

    def test_results_that_cannot_be_written(self):
        self.out = self.folder / "gone/results.jsonl"
        process = self.start(stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.assertIn("cannot write the results", process.communicate(timeout=10)[1])
        self.assertEqual(process.returncode, 2)


class RefusalTest(ProgramTest):
    def archive(self, name, mode="w:xz", members=("bundle.json", "bin/cadre")):
        path = self.folder / name
        with tarfile.open(path, mode) as tar:
            for member in members:
                about = tarfile.TarInfo(member if ".." in member or member[0] == "/" else f"cadre-gpu/{member}")
                text = json.dumps(self.fake.about).encode() if "json" in member else b"#!/bin/sh\n"
                about.mode = 0o755
                about.size = len(text)
                tar.addfile(about, io.BytesIO(text))
        return path

    def refused(self, bundle, *arguments):
        code, _, took = self.check(*arguments, bundle=bundle)
        self.assertEqual(code, 2)
        self.assertEqual(self.lines[-1]["line"], "refused")
        self.assertIn(self.lines[-1]["reason"], self.errors)
        return self.lines[-1]["reason"]

    def test_complete_archive(self):
        code, _, _ = self.check("--only", "starts", bundle=self.archive("b.tar.xz"))
        self.assertEqual(code, 0)

    def test_without_programs_for_compression(self):
        programs = self.folder / "bare"
        programs.mkdir()
        (programs / "python3").symlink_to(sys.executable)
        for name in ("bash", "readlink", "dirname"):
            (programs / name).symlink_to(shutil.which(name))
        self.fake.environment["PATH"] = str(programs)
        code, _, _ = self.check("--only", "starts", bundle=self.archive("b.tar.xz"))
        self.assertEqual(code, 0)

    def test_other_compression(self):
        path = self.folder / "b.tar.zst"
        path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
        self.assertIn("compressed with Zstandard", self.refused(path))

    def test_truncated_archive(self):
        path = self.archive("b.tar.xz")
        path.write_bytes(path.read_bytes()[:-40])
        self.assertIn("cannot unpack b.tar.xz: Compressed file ended before", self.refused(path))

    def test_corrupt_archive(self):
        path = self.archive("b.tar.xz")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
        self.assertIn("cannot unpack b.tar.xz: ", self.refused(path))

    def test_no_archive(self):
        path = self.folder / "b.tar.xz"
        path.write_text("a text" * 100)
        self.assertIn("cannot unpack b.tar.xz: ", self.refused(path))

    def test_archive_of_something_else(self):
        path = self.archive("b.tar.xz", members=["other.json"])
        self.assertIn("b.tar.xz is not a bundle: bench/gpu_bundle.sh creates one", self.refused(path))

    def test_members_outside(self):
        for member in ("../outside", "/tmp/outside"):
            path = self.archive("b.tar.xz", members=[member])
            self.assertIn(f"'{member}' is not a file of it", self.refused(path))

    def test_incomplete_folder(self):
        (self.fake.bundle / "lib/a.so").write_bytes(bytes(5))
        self.fake.about["files"] = {"lib/a.so": 7}
        self.fake.write()
        self.assertIn("cadre-gpu is incomplete: lib/a.so has 5 of 7 bytes", self.refused(None))
        (self.fake.bundle / "lib/a.so").unlink()
        self.assertIn("lib/a.so is missing", self.refused(None))

    def test_selection_of_nothing(self):
        self.fake.add_test("a_test", First="pass")
        reason = self.refused(None, "--only", "tests:kernels")
        self.assertEqual(reason, "'tests:kernels' selects nothing; there are a_test")

    def test_copy_of_the_script_reads_the_archive(self):
        path = self.folder / "b.tar.xz"
        with lzma.open(path, "w") as file, tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(ROOT / "bench/gpu_check", "cadre-gpu/gpu_check", filter=lambda member: (
                None if "__pycache__" in member.name else member))
            tar.add(self.fake.bundle, "cadre-gpu")
        script = self.folder / "copy.sh"
        script.write_text((ROOT / "bench/gpu_check.sh").read_text())
        result = subprocess.run(
            ["bash", script, "--only", "starts", "--out", self.out, path], env=self.fake.environment,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
