#!/usr/bin/env python3
"""bench/gpu_check.py reports what passed, failed and was skipped, and continues after failures.

usage: gpu_check_test.py REPOSITORY

A bundle is the folder of programs that bench/gpu_bundle.sh makes. Here its programs are shell
scripts, and find_gpu is replaced by a function that returns the name of a GPU, or a reason why
there is none.
"""

import contextlib
import io
import json
import pathlib
import struct
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "bench"))

import gpu_check  # noqa: E402

# Answers --gtest_list_tests, and otherwise writes the file that the last argument names.
GTEST = """#!/bin/sh
[ "$1" = --gtest_list_tests ] && exit 0
for last; do :; done
cat >"${{last#--gtest_output=xml:}}" <<'XML'
<testsuites><testsuite name="A">{cases}</testsuite></testsuites>
XML
echo "ran $1"
exit {code}
"""
PASSED = '<testcase name="Works" status="run" time="0.25" classname="A"/>'
FAILED = (
    '<testcase name="Breaks" status="run" time="0" classname="A">'
    '<failure message="a_test.cc:3&#x0A;1 is not 2"/></testcase>'
)
SKIPPED = (
    '<testcase name="Waits" status="run" time="0" classname="A">'
    '<skipped message="a_test.cc:7&#x0A;needs two GPUs&#x0A;"/></testcase>'
)


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bundle = self.folder / "bundle"
        for name in ("bin", "tests", "lib"):
            (self.bundle / name).mkdir(parents=True)
        self.about = {
            "commit": "abc", "built": "today", "nvcc": "13.0", "architectures": "90a",
            "tests": [], "benches": [],
        }  # fmt: skip
        self.gpu = ("a GPU", None)
        self.seconds = 60.0

    def script(self, place, text):
        path = self.bundle / place
        path.write_text(text)
        path.chmod(0o755)

    def add_test(self, name, *cases, code=0):
        self.script(f"tests/{name}", GTEST.format(cases="".join(cases), code=code))
        self.about["tests"].append({"name": name, "arguments": ["--zoo={bundle}/source/zoo"]})

    def add_bench(self, name, text, seconds=20):
        self.script(f"bin/{name}", text)
        command = [f"{{bundle}}/bin/{name}", "{seconds}"]
        self.about["benches"].append({"name": name, "seconds": seconds, "command": command})

    def check(self, *sections):
        """(exit code, {(section, name): (result, reason)})."""
        (self.bundle / "bundle.json").write_text(json.dumps(self.about))
        out = self.folder / "out.json"
        options = types.SimpleNamespace(
            bundle=self.bundle, only=sections, seconds=self.seconds, out=out
        )
        work = self.folder / "work"
        work.mkdir()
        with (
            unittest.mock.patch.object(gpu_check, "find_gpu", lambda: self.gpu),
            contextlib.redirect_stdout(io.StringIO()) as table,
        ):
            code = gpu_check.Check(options, work).run_all()
        self.table = table.getvalue()
        self.report = json.loads(out.read_text())
        records = self.report["records"]
        return code, {(r["section"], r["name"]): (r["result"], r["reason"]) for r in records}

    def test_everything_passed(self):
        self.add_test("a_test", PASSED)
        self.add_bench("bench_a", "#!/bin/sh\necho text\necho '{\"bytes_per_s\": 3}'\n")
        self.assertEqual(self.check("tests", "bench")[0], 0)
        self.assertEqual(self.report["counts"], {"pass": 2, "fail": 0, "skip": 0})
        self.assertEqual(self.report["bench"], [{"program": "bench_a", "bytes_per_s": 3}])
        self.assertEqual(self.report["machine"]["card"], "a GPU")
        self.assertIn("2 passed, 0 failed, 0 skipped", self.table)

    def test_continues_after_a_failure(self):
        self.add_test("a_test", PASSED, FAILED, code=1)
        self.add_test("b_test", PASSED)
        code, found = self.check("tests")
        self.assertEqual(code, 1)
        self.assertEqual(found["tests", "a_test/A.Breaks"][0], "fail")
        self.assertEqual(found["tests", "b_test/A.Works"][0], "pass")
        self.assertIn("1 is not 2", json.dumps(self.report))

    def test_program_that_fails_outside_of_its_cases(self):
        self.add_test("a_test", PASSED, code=134)
        self.script("tests/b_test", "#!/bin/sh\nexit 3\n")
        self.about["tests"].append({"name": "b_test", "arguments": []})
        code, found = self.check("tests")
        self.assertEqual(code, 1)
        self.assertEqual(found["tests", "a_test"], ("fail", "exit code 134"))
        self.assertEqual(found["tests", "b_test"], ("fail", "exit code 3"))

    def test_completed_cases_of_a_crashed_program_are_reported(self):
        self.script(
            "tests/gpu_plans_test",
            """#!/bin/sh
echo '[       OK ] Zoo/Plans.Equal/on1 (1500 ms)'
echo '[  FAILED  ] Zoo/Plans.Equal/on2, where GetParam() = 2 (20 ms)'
echo '[ RUN      ] Zoo/Plans.Equal/on4'
exit 139
""",
        )
        self.about["tests"].append({"name": "gpu_plans_test", "arguments": []})
        code, found = self.check("tests")
        self.assertEqual(code, 1)
        self.assertEqual(found["tests", "gpu_plans_test/Zoo/Plans.Equal/on1"][0], "pass")
        self.assertEqual(found["tests", "gpu_plans_test/Zoo/Plans.Equal/on2"][0], "fail")
        self.assertEqual(found["tests", "gpu_plans_test"], ("fail", "exit code 139"))

    def test_programs_run_in_order_of_importance(self):
        for name in ("a_test", "gpu_plans_test", "transport_nccl_gpu_test", "kernels_cuda_test"):
            self.add_test(name, PASSED)
        _, found = self.check("tests")
        self.assertEqual(
            [name.split("/")[0] for _, name in found],
            ["kernels_cuda_test", "transport_nccl_gpu_test", "a_test", "gpu_plans_test"],
        )

    def test_skipped_test_is_reported_with_its_reason(self):
        self.add_test("a_test", PASSED, SKIPPED)
        code, found = self.check("tests")
        self.assertEqual(code, 4)
        self.assertEqual(found["tests", "a_test/A.Waits"], ("skip", "needs two GPUs"))
        self.assertIn("skip: tests/a_test/A.Waits: needs two GPUs", self.table)

    def test_without_a_gpu_programs_are_only_started(self):
        self.gpu = (None, "no NVIDIA driver")
        self.add_test("a_test", PASSED)
        for name in ("cadre", "bench_a"):
            self.script(f"bin/{name}", "#!/bin/sh\n[ $1 = --help ]\n")
        code, found = self.check("starts", "tests", "bench")
        self.assertEqual(code, 3)
        for name in ("cadre", "bench_a", "a_test"):
            self.assertEqual(found["starts", name][0], "pass")
        self.assertEqual(found["tests", "all of it"], ("skip", "no NVIDIA driver"))

    def test_without_a_gpu_a_failed_start_is_reported(self):
        self.gpu = (None, "no NVIDIA driver")
        self.script("bin/cadre", "#!/bin/sh\necho libx.so.1: not found\nexit 127\n")
        self.assertEqual(self.check("starts")[0], 1)
        self.assertIn("libx.so.1: not found", json.dumps(self.report))

    def test_benchmarks_that_hang_or_print_no_json(self):
        self.add_bench("bench_a", "#!/bin/sh\nsleep 100 & wait\n", seconds=0.3)
        self.add_bench("bench_b", "#!/bin/sh\necho '{}'\n")
        self.add_bench("bench_c", "#!/bin/sh\necho fast\n")
        code, found = self.check("bench")
        self.assertEqual(code, 1)
        self.assertIn("exceeded its limit", found["bench", "bench_a"][1])
        self.assertEqual(found["bench", "bench_b"][0], "pass")
        self.assertIn("no line of JSON", found["bench", "bench_c"][1])

    def test_programs_beyond_the_time_limit_are_skipped(self):
        self.seconds = 0.0
        self.add_bench("bench_a", "#!/bin/sh\necho '{}'\n")
        code, found = self.check("bench")
        self.assertEqual(code, 4)
        self.assertIn("no time was left", found["bench", "bench_a"][1])


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
            return gpu_check.largest_difference(
                *(gpu_check.read_model(pathlib.Path(folder, name)) for name in "ab")
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
