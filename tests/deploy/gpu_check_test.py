#!/usr/bin/env python3
"""bench/gpu_check reports what passed, failed and was skipped, and continues after failures.

usage: gpu_check_test.py REPOSITORY

The programs of the bundle are scripts; gpu_check_limits_test.py runs the whole program.
"""

import contextlib
import io
import json
import os
import pathlib
import re
import struct
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path[:0] = [str(ROOT / "bench"), str(pathlib.Path(__file__).parent)]

from fake_gpu_bundle import FakeBundle, by_name, read_lines  # noqa: E402
from gpu_check import check, local_runs, main, processes, results, sections  # noqa: E402


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.fake = FakeBundle(self.folder)
        patch = unittest.mock.patch.dict(os.environ, self.fake.environment)
        patch.start()
        self.addCleanup(patch.stop)
        self.seconds = 60.0

    def check(self, *only):
        """(exit code, {(section, name): (result, reason)})."""
        out = self.folder / "out.jsonl"
        work = self.folder / "work"
        work.mkdir()
        found = results.Results(out)
        running = processes.Processes(work)
        about = self.fake.about
        tested = check.Check(self.fake.bundle, about, running, found, time.monotonic() + self.seconds)
        with contextlib.redirect_stdout(io.StringIO()) as table:
            main.run_sections(tested, [main.item(text) for text in only], None)
            found.finish("a GPU", found.exit_code(None))
        self.table = table.getvalue()
        self.lines = read_lines(out)
        return found.exit_code(None), by_name(self.lines)

    def line(self, section, name):
        return next(line for line in self.lines if line.get("section") == section and line["name"] == name)

    def test_everything_passed(self):
        self.fake.add_test("a_test", Works="pass")
        self.fake.add_bench("a", "echo text\necho '{\"bytes_per_s\": 3}'")
        self.assertEqual(self.check("tests", "bench")[0], 0)
        self.assertEqual(self.lines[-1]["counts"], {"pass": 2, "fail": 0, "skip": 0})
        bench = next(line for line in self.lines if line["line"] == "bench")
        self.assertEqual((bench["program"], bench["bytes_per_s"]), ("a", 3))
        self.assertIn("2 passed, 0 failed, 0 skipped", self.table)

    def test_failed_case_runs_again_alone_with_logs(self):
        self.fake.add_test("a_test", Works="pass", Breaks="fail", Other="fails in company")
        self.fake.add_test("b_test", Works="pass")
        code, found = self.check("tests")
        self.assertEqual(code, 1)
        self.assertEqual(found["tests", "a_test/A.Breaks"][0], "fail")
        self.assertEqual(found["tests", "b_test/A.Works"][0], "pass")
        self.assertIn("CADRE_CUDA_SYNC=None", self.line("tests", "a_test/A.Breaks")["output"])
        again = self.line("alone", "tests/a_test/A.Breaks")
        self.assertEqual(again["result"], "fail")
        self.assertIn("CADRE_CUDA_SYNC=1", again["output"])
        self.assertEqual(again["logs"], {"cudnn": "cuDNN ERROR broken", "nccl.h.1": "NCCL WARN broken"})
        self.assertEqual(found["alone", "tests/a_test/A.Other"], ("pass", "passes alone"))
        self.assertNotIn(("alone", "tests/a_test/A.Works"), found)

    def test_program_that_fails_outside_of_its_cases(self):
        self.fake.add_test("a_test", code=134, Works="pass")
        self.fake.add_test("b_test", Works="pass", Leaves="exit", Misses="pass")
        self.fake.script(self.fake.bundle / "tests/c_test", "#!/bin/sh\nexit 3\n")
        self.fake.about["tests"].append({"name": "c_test", "arguments": []})
        code, found = self.check("tests")
        self.assertEqual(code, 1)
        self.assertEqual(found["tests", "a_test"], ("fail", "exit code 134"))
        self.assertEqual(found["tests", "b_test/A.Leaves"], ("fail", "during this case: the program ended"))
        self.assertEqual(found["tests", "b_test/A.Misses"][0], "pass")
        self.assertEqual(found["tests", "c_test"], ("fail", "exit code 3"))

    def test_case_that_hangs_ends_at_its_limit(self):
        self.fake.add_test("a_test", First="pass", Hangs="hang", Last="pass")
        with (
            unittest.mock.patch.object(check, "CASE_LIMIT", 1),
            unittest.mock.patch.object(check, "ALONE_LIMIT", 1),
        ):
            code, found = self.check("tests")
        self.assertEqual(code, 1)
        self.assertEqual(found["tests", "a_test/A.Hangs"], ("fail", "during this case: no case ended in 1 s"))
        self.assertEqual(found["tests", "a_test/A.Last"][0], "pass")
        self.assertEqual(found["alone", "tests/a_test/A.Hangs"], ("fail", "exceeded its limit of 1 s"))

    def test_nothing_runs_after_the_driver_hangs(self):
        os.environ["FAKE_SMI_HANGS"] = str(self.folder / "hangs")
        self.fake.add_test("a_test", Hangs="hang", Last="pass")
        self.fake.add_bench("a", "echo '{}'")
        with (
            unittest.mock.patch.object(check, "CASE_LIMIT", 1),
            unittest.mock.patch.object(check.machine, "ANSWER_SECONDS", 1),
        ):
            _, found = self.check("tests", "bench")
        reason = "the driver did not answer in 1 s after a_test/A.Hangs"
        self.assertEqual(found["tests", "a_test"], ("skip", f"1 cases did not run: {reason}"))
        self.assertEqual(found["bench", "all of it"], ("skip", reason))
        self.assertEqual(found["alone", "tests/a_test/A.Hangs"], ("skip", reason))

    def test_cases_after_a_kernel_fault_run_in_a_new_process(self):
        self.fake.add_test("a_test", First="pass", Faults="fault", Last="pass")
        code, found = self.check("tests")
        self.assertEqual(code, 1)
        self.assertEqual(found["tests", "a_test/A.Faults"][0], "fail")
        self.assertEqual(found["tests", "a_test/A.Last"][0], "pass")

    def test_faulty_case_runs_under_memcheck(self):
        self.fake.program("compute-sanitizer", "echo checked $*\nexit 99")
        self.fake.add_test("a_test", Faults="fault")
        self.check("tests")
        again = self.line("alone", "memcheck tests/a_test/A.Faults")
        self.assertEqual((again["result"], again["reason"]), ("fail", "exit code 99"))
        self.assertIn("--gtest_filter=A.Faults", again["output"])

    def test_programs_run_in_order_of_importance(self):
        for name in ("a_test", "gpu_plans_test", "transport_nccl_gpu_test", "kernels_cuda_test"):
            self.fake.add_test(name, Works="pass")
        _, found = self.check("tests")
        self.assertEqual(
            [name.split("/")[0] for _, name in found],
            ["kernels_cuda_test", "transport_nccl_gpu_test", "a_test", "gpu_plans_test"],
        )

    def test_plans_run_one_by_one_the_cheapest_first(self):
        names = ("Zoo/P.E/resnet50On4", "Zoo/P.E/lenetOn4", "Zoo/P.E/gptOn2", "Zoo/P.E/lenetOn1", "Zoo/P.E/mlpOn4")
        self.assertEqual(
            [name.rpartition("/")[2] for name in sorted(names, key=check.cost_of)],
            ["lenetOn1", "lenetOn4", "mlpOn4", "gptOn2", "resnet50On4"],
        )
        # A crash of one case does not touch the others.
        self.fake.add_test("gpu_plans_test", lenetOn1="crash", lenetOn2="fails in company")
        _, found = self.check("tests")
        self.assertEqual(found["tests", "gpu_plans_test/A.lenetOn1"], ("fail", "during this case: ended by SIGSEGV"))
        self.assertEqual(found["tests", "gpu_plans_test/A.lenetOn2"][0], "pass")

    def test_parts_of_sections(self):
        self.fake.add_test("a_test", One="pass", Two="pass")
        self.fake.add_test("b_test", One="pass")
        self.fake.add_bench("x", "echo '{}'")
        self.fake.add_bench("x-torch", "echo '{}'")
        _, found = self.check("bench:x", "tests:a/A.Two")
        self.assertEqual([*found], [("bench", "x"), ("tests", "a_test/A.Two")])

    def test_filter_that_matches_nothing(self):
        self.fake.add_test("a_test", One="pass")
        code, found = self.check("tests:a/B.*")
        self.assertEqual((code, found["tests", "a_test"]), (1, ("fail", "no case matches 'B.*'")))

    def test_skipped_test_is_reported_with_its_reason(self):
        self.fake.add_test("a_test", Waits="skip")
        code, found = self.check("tests")
        self.assertEqual(code, 4)
        self.assertEqual(found["tests", "a_test/A.Waits"], ("skip", "needs two GPUs"))
        self.assertIn("skip: tests/a_test/A.Waits: needs two GPUs", self.table)

    def test_failed_smoke_test_skips_the_rest(self):
        for name, pattern in sections.SMOKE:
            cases = {each.replace("*", "0"): "pass" for each in pattern.split(":")}
            self.fake.add_cases(name, cases)
        self.fake.add_bench("lenet", "echo '{}'")
        code, found = self.check("smoke", "tests:device")
        self.assertEqual(code, 0)
        self.assertEqual(found["smoke", "lenet"][0], "pass")
        self.fake.about["tests"] = []
        for name, pattern in sections.SMOKE:
            cases = {each.replace("*", "0"): "skip" for each in pattern.split(":")}
            self.fake.add_cases(name, cases)
        self.folder.joinpath("work").rename(self.folder / "before")
        code, found = self.check("smoke", "tests:device")
        self.assertEqual((code, found["tests", "device"]), (4, ("skip", "the smoke test did not pass")))
        self.fake.add_bench("lenet", "exit 3")
        self.folder.joinpath("work").rename(self.folder / "before2")
        code, found = self.check("smoke", "tests:device")
        self.assertEqual((code, found["tests", "device"]), (1, ("skip", "the smoke test did not pass")))

    def test_cases_of_the_smoke_test_exist(self):
        text = "".join(path.read_text() for path in (ROOT / "tests").rglob("*_test.cc"))
        declared = {".".join(names) for names in re.findall(r"TEST(?:_[FP])?\((\w+), (\w+)\)", text)}
        for _, pattern in sections.SMOKE:
            for each in pattern.split(":"):
                suite, case = re.search(r"(\w+)\.(\w+)", each).groups()
                self.assertIn(f"{suite}.{case}", declared)
        commands = (ROOT / "bench/gpu/commands.txt").read_text()
        self.assertRegex(commands, rf"(?m)^{sections.SMOKE_BENCH} ")

    def test_benchmarks_that_hang_or_print_no_json(self):
        self.fake.add_bench("a", "echo '{\"first\": 1}'\nsleep 100 & wait", seconds=0.5)
        self.fake.add_bench("b", "echo '{}'")
        self.fake.add_bench("c", "echo fast")
        code, found = self.check("bench")
        self.assertEqual(code, 1)
        self.assertIn("exceeded its limit", found["bench", "a"][1])
        self.assertEqual([line["first"] for line in self.lines if "first" in line], [1])
        self.assertEqual(found["bench", "b"][0], "pass")
        self.assertIn("no line of JSON", found["bench", "c"][1])

    def test_programs_beyond_the_time_limit_are_skipped(self):
        self.seconds = 0.0
        self.fake.add_bench("a", "echo '{}'")
        code, found = self.check("bench")
        self.assertEqual(code, 4)
        self.assertEqual(found["bench", "all of it"], ("skip", "no time was left"))

    def test_demo_trains_sixty_steps(self):
        source = (ROOT / "deploy/demo-gpu.textproto").read_text()
        (self.fake.bundle / "source/deploy/demo-gpu.textproto").write_text(source)
        # Prints the run file's stop as its summary.
        self.fake.add_program("cadre", """grep -q '^stop { steps: 60 }$' "$2" && grep -q '^  warmup_steps: 10$' "$2" || exit 5
echo '{"test_accuracy": 0.5, "samples_per_second": 7}'""")  # fmt: skip
        _, found = self.check("demo")
        self.assertEqual(found["demo", "2 groups x 2 ranks"], ("pass", "test accuracy 0.5, 7 samples/s"))

    def test_sanitizer_checks_our_kernels_only(self):
        self.fake.program("compute-sanitizer", "echo $* >>calls\necho '  --kernel-regex arg'")
        self.fake.add_test("kernels_cuda_test", Works="pass")
        code, _ = self.check("sanitizer")
        self.assertEqual(code, 0)
        calls = (self.folder / "work/calls").read_text().splitlines()[1:]
        self.assertEqual(len(calls), 2)
        for kind, call in zip(("memcheck", "racecheck"), calls):
            self.assertIn(f"--tool {kind} --kernel-regex kns=cadre ", call)
            self.assertIn(f"--gtest_filter={sections.SANITIZER_CASES}", call)

    def test_process_that_survives_sigkill(self):
        # As one that waits in a driver; here signals are lost.
        running = processes.Processes(self.folder)
        real, kill = os.killpg, os.kill
        with unittest.mock.patch.object(os, "killpg"), unittest.mock.patch.object(os, "kill"):
            begin = time.monotonic()
            outcome = running.run(["sleep", "1000"], 0.5)
            self.assertLess(time.monotonic() - begin, 6)
        self.assertIn("exceeded its limit of 0 s; survives SIGKILL", outcome.problem())
        for pid in running.survivors:
            kill(pid, 9)
            os.waitpid(pid, 0)
        self.assertIs(real, os.killpg)


class DifferenceTest(unittest.TestCase):
    def write(self, folder, **tensors):
        header, data = {"__metadata__": {}}, b""
        for name, values in tensors.items():
            raw = struct.pack(f"<{len(values)}f", *values)
            header[name] = {
                "dtype": "F32", "shape": [len(values)],
                "data_offsets": [len(data), len(data) + len(raw)],
            }  # fmt: skip
            data += raw
        text = json.dumps(header).encode()
        path = pathlib.Path(folder) / "step-10"
        path.mkdir(parents=True)
        (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)

    def difference(self, one, other):
        with tempfile.TemporaryDirectory() as folder:
            self.write(f"{folder}/a", **one)
            self.write(f"{folder}/b", **other)
            return local_runs.largest_difference(
                *(local_runs.read_model(pathlib.Path(folder, name)) for name in "ab")
            )

    def test_equal_models(self):
        self.assertEqual(self.difference({"w": [1, 2]}, {"w": [1, 2]})[0], 0)

    def test_difference_is_relative_to_the_largest_value(self):
        error, where = self.difference({"w": [4, 1], "v": [8]}, {"w": [4, 2], "v": [8]})
        self.assertEqual((error, where), (0.25, "w"))

    def test_nan_is_a_difference(self):
        self.assertEqual(self.difference({"w": [1, 2]}, {"w": [1, float("nan")]})[0], float("inf"))

    def test_different_tensors_are_an_error(self):
        with self.assertRaises(KeyError):
            self.difference({"w": [1]}, {"v": [1]})
        with self.assertRaises(ValueError):
            self.difference({"w": [1]}, {"w": [1, 2]})


if __name__ == "__main__":
    unittest.main()
