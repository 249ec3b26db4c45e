#!/usr/bin/env python3
"""bench/gpu/gpu_step.py compares the runs of programs, of which these tests write their own; and the benchmarks on a
GPU run on an emulated device, and end with the right exit code without one.

usage: gpu_step_test.py REPOSITORY [BENCH_GPU_STEP BENCH_GPU_KERNELS EMULATED_GPU_STEP EMULATED_GPU_KERNELS]
"""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
PROGRAMS = [os.path.abspath(sys.argv.pop(1)) for _ in sys.argv[1:5]]
SCRIPT = ROOT / "bench/gpu/gpu_step.py"
sys.path.insert(0, str(SCRIPT.parent))

import gpu_step  # noqa: E402

ATTENTION = """
name: "attention"
model {
  tokens { length: 8 }
  layer { name: "embedding" embedding { vocabulary: 16 features: 16 positions: true } }
  layer { name: "attention" attention { heads: 2 causal: true } }
  layer { name: "head" fully_connected { out_features: 16 no_bias: true } }
  layer { name: "loss" softmax_cross_entropy {} }
}
data { synthetic { train_samples: 16 test_samples: 4 classes: 16 } }
batch_per_group: 4
optimizer { sgd {} }
schedule { base_rate: 0.1 }
stop { steps: 1 }
"""


def alive(pid):
    """Whether a process runs; one that has ended may still be listed until its parent notices."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.pid = pathlib.Path(folder.name) / "pid"
        # A child that ignores SIGTERM and keeps the output open.
        self.hang = ["sh", "-c", f"trap '' TERM; echo '{{\"a\": 1}}'; sleep 100 & echo $! > {self.pid}; wait"]

    def child(self):
        self.assertTrue(eventually(lambda: self.pid.exists() and self.pid.read_text().strip()))
        return int(self.pid.read_text())

    def test_a_run_that_hangs_is_killed_with_its_children(self):
        start = time.monotonic()
        result = gpu_step.run(self.hang, 1)
        self.assertLess(time.monotonic() - start, 8)
        self.assertEqual(result.failure, "exceeded its limit of 1 s")
        self.assertTrue(eventually(lambda: not alive(self.child())))

    def test_a_child_that_outlives_its_parent_does_not_block(self):
        result = gpu_step.run(["sh", "-c", f"sleep 100 & echo $! > {self.pid}; echo '{{\"a\": 1}}'"], 20)
        self.assertEqual((result.line, result.failure), ({"a": 1}, None))
        self.assertTrue(eventually(lambda: not alive(self.child())))

    def test_a_killed_comparison_ends_its_run(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number):
                self.pid.unlink(missing_ok=True)
                program = pathlib.Path(self.pid.parent) / "bench_gpu_step"
                program.write_text(f"#!/bin/sh\necho $$ > {self.pid}\nexec sleep 100\n")
                program.chmod(0o755)
                process = subprocess.Popen([sys.executable, SCRIPT, "--programs", self.pid.parent])
                child = self.child()
                process.send_signal(number)
                self.assertNotEqual(process.wait(20), 0)
                self.assertTrue(eventually(lambda: not alive(child)))

    def test_failures_have_a_reason(self):
        for command, reason in (
            (["sh", "-c", "echo why >&2; exit 7"], "exit code 7: why"),
            (["sh", "-c", "echo '{\"failure\": \"not fused\"}'; exit 1"], "exit code 1: not fused"),
            (["sh", "-c", "echo text; echo '{\"cut'"], "exit code 0: no line of JSON"),
            (["./no such program"], "No such file"),
        ):
            with self.subTest(command):
                self.assertIn(reason, gpu_step.run(command, 20).failure)


def line(speed, parameters=10, **more):
    return json.dumps({"samples_per_second": speed, "step_ms": 1000 / speed, "peak_bytes": 7,
                       "parameters": parameters, **more})  # fmt: skip


def torch_line(speed, parameters=10):
    return line(speed, parameters, device="a GPU", torch="2", cuda="13", cudnn=9)


def prints(text, code=0):
    return ["sh", "-c", f"echo '{text}'; exit {code}"]


class ComparisonTest(unittest.TestCase):
    """`commands`: what runs for Cadre and for each mode of PyTorch."""

    def compare(self, commands, *flags):
        self.started = []

        def command(comparison, name):
            self.started.append(name)
            chosen = commands[name]
            return chosen[comparison.model] if isinstance(chosen, dict) else chosen

        flags = ["gpu_step", "--precisions", "bf16", "--models", "lenet", "--rounds", "2",
                 "--modes", ",".join(name for name in commands if name != "cadre"), *flags]  # fmt: skip
        with mock.patch.object(gpu_step.Comparison, "command", command), \
                mock.patch.object(gpu_step, "machine", lambda: {"card": "a GPU"}), \
                mock.patch.object(sys, "argv", flags), \
                mock.patch.object(signal, "signal"), \
                contextlib.redirect_stdout(io.StringIO()) as out, \
                contextlib.redirect_stderr(io.StringIO()), \
                self.assertRaises(SystemExit) as ended:  # fmt: skip
            gpu_step.main()
        lines = [json.loads(text) for text in out.getvalue().splitlines()]
        self.runs = [one for one in lines if one.get("bench") != "gpu_step_vs_torch"]
        self.results = [one for one in lines if one.get("bench") == "gpu_step_vs_torch"]
        return ended.exception.code

    def test_the_best_mode_counts(self):
        code = self.compare({"cadre": prints(line(6)), "eager": prints(torch_line(4)),
                             "reduce-overhead": prints(torch_line(8))})  # fmt: skip
        self.assertEqual(code, 0)
        result = self.results[0]
        self.assertEqual((result["ratio"], result["against"]), (0.75, "reduce-overhead"))
        self.assertEqual(result["samples_per_second"], {"cadre": 6, "eager": 4, "reduce-overhead": 8})
        self.assertEqual(result["peak_bytes"], {"cadre": 7, "eager": 7, "reduce-overhead": 7})
        self.assertEqual((result["machine"], result["pytorch"]["torch"]), ({"card": "a GPU"}, "2"))
        # Before, between and after the runs of PyTorch; the line of each run is printed, too.
        self.assertEqual(self.started, ["cadre", *["eager", "reduce-overhead", "cadre"] * 2])
        self.assertEqual(len(self.runs), 7)

    def test_a_mode_that_exceeds_its_limit_does_not_end_the_comparison(self):
        code = self.compare({"cadre": prints(line(6)), "eager": prints(torch_line(4)),
                             "max-autotune": ["sleep", "100"]}, "--autotune-limit", "1")  # fmt: skip
        self.assertEqual(code, 0)
        self.assertEqual(self.results[0]["ratio"], 1.5)
        self.assertEqual(self.results[0]["failures"], {"max-autotune": "exceeded its limit of 1 s"})
        self.assertEqual(self.started.count("max-autotune"), 1)

    def test_without_a_gpu_nothing_is_compared(self):
        code = self.compare({"cadre": ["sh", "-c", "echo no driver >&2; exit 3"],
                             "eager": prints(torch_line(4))}, "--models", "lenet,gpt")  # fmt: skip
        self.assertEqual((code, self.started, self.results), (3, ["cadre"], []))

    def test_a_missing_plan_ends_only_its_model(self):
        code = self.compare({"cadre": {"lenet": ["sh", "-c", "echo no plan of 5x5 >&2; exit 4"],
                                       "gpt": prints(line(6))},
                             "eager": prints(torch_line(4))}, "--models", "lenet,gpt")  # fmt: skip
        self.assertEqual(code, 4)
        self.assertEqual(self.results[0]["failures"], {"cadre": "exit code 4: no plan of 5x5"})
        self.assertNotIn("ratio", self.results[0])
        self.assertEqual(self.results[1]["ratio"], 1.5)

    def test_without_pytorch_cadre_is_measured(self):
        code = self.compare({"cadre": prints(line(6)),
                             "eager": ["sh", "-c", "echo no PyTorch >&2; exit 5"],
                             "compile": prints(torch_line(4))})  # fmt: skip
        self.assertEqual(code, 0)
        result = self.results[0]
        self.assertEqual(result["runs"], {"cadre": 3, "eager": 0, "compile": 0})
        self.assertEqual(result["failures"], {mode: "exit code 5: no PyTorch" for mode in ("eager", "compile")})
        self.assertNotIn("ratio", result)

    def test_other_networks_are_refused_by_name(self):
        code = self.compare({"cadre": prints(line(6)), "eager": prints(torch_line(4, parameters=11))})
        self.assertEqual(code, 1)
        self.assertEqual(self.results[0]["refused"],
                         "lenet: Cadre trains 10 parameters, PyTorch 11 with eager")  # fmt: skip
        self.assertNotIn("ratio", self.results[0])

    def test_a_failure_of_cadre_fails_the_comparison(self):
        code = self.compare({"cadre": prints(line(6, failure="not fused"), 1),
                             "eager": prints(torch_line(4))})  # fmt: skip
        self.assertEqual(code, 1)
        self.assertEqual(self.results[0]["failures"], {"cadre": "exit code 1: not fused"})

    def test_runs_after_the_time_limit_are_named(self):
        self.compare({"cadre": prints(line(6)), "eager": ["sleep", "100"],
                      "compile": prints(torch_line(4))}, "--seconds", "3")  # fmt: skip
        failures = self.results[0]["failures"]
        self.assertIn("exceeded its limit", failures["eager"])
        self.assertEqual(failures["compile"], "no time was left")

    def test_run_file_of_gpt2_small_is_found(self):
        self.assertEqual(pathlib.Path(gpu_step.run_file("gpt2-small")).read_text()[:1], "#")
        self.assertEqual(gpu_step.run_file("lenet"), "lenet")


@unittest.skipIf(not PROGRAMS, "this build has no CUDA back end")
class ProgramsTest(unittest.TestCase):
    QUICK = ("--batch", "2", "--steps", "2", "--warmup", "4")

    def setUp(self):
        self.step, self.kernels, self.emulated_step, self.emulated_kernels = PROGRAMS

    def run_program(self, *command):
        return subprocess.run(command, capture_output=True, text=True, timeout=100)

    def emulate(self, *flags):
        result = self.run_program(self.emulated_step, *self.QUICK, *flags)
        return result, json.loads(result.stdout) if result.stdout else None

    def test_exit_code_without_a_gpu(self):
        """Where there is none; with a GPU, the programs themselves are the test."""
        for program in (self.step, self.kernels):
            result = self.run_program(program, "--device", "cuda:99")
            if result.returncode == 3:
                self.assertRegex(result.stderr, "no NVIDIA driver|no GPU")
            else:
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertNotRegex(result.stderr, "no NVIDIA driver|no GPU")

    def test_exit_codes_of_faults(self):
        for fault, code, reason in (("no-gpu", 3, "cudaErrorNoDevice"), ("old-driver", 1, "too old"),
                                    ("no-plan", 4, "no plan"), ("failed-plan", 1, "no plan"),
                                    ("no-product", 4, "no plan of matrix product"),
                                    ("no-graph", 1, "an emulated error")):  # fmt: skip
            with self.subTest(fault):
                result, line = self.emulate("--model", "lenet", "--emulated_fault", fault)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn(reason, result.stderr)
                if line is not None:
                    self.assertIn(reason, line["failure"])
        result = self.run_program(self.emulated_kernels, "--emulated_fault", "no-plan")
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertEqual(self.emulate("--precision", "fp8")[0].returncode, 2)

    def test_steps(self):
        result, line = self.emulate("--model", "lenet", "--precision", "bf16")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("failure", line)
        self.assertEqual((line["model"], line["parameters"], line["libraries"]),
                         ("lenet", 3241354, "emulated"))  # fmt: skip
        for field in ("step_ms", "plain_step_ms", "kernels_ms", "graph_launches", "peak_bytes"):
            self.assertGreater(line[field], 0, field)
        # Weights, gradients and momentum in fp32, weights in bf16; without the memory of the timer.
        self.assertGreater(line["peak_bytes"], 14 * line["parameters"])
        self.assertLess(line["peak_bytes"], 18 * line["parameters"])

    def test_attention_must_be_fused(self):
        with tempfile.NamedTemporaryFile("w", suffix=".textproto") as file:
            file.write(ATTENTION)
            file.flush()
            for fault, precision, code in (("", "bf16", 0), ("unfused", "tf32", 0), ("unfused", "bf16", 1)):
                with self.subTest((fault, precision)):
                    flags = ("--model", file.name, "--precision", precision, "--emulated_fault", fault)
                    result, line = self.emulate(*flags)
                    self.assertEqual(result.returncode, code, result.stderr)
                    self.assertEqual((line["unfused_attentions"], line["refused_recordings"]), (code, 0))
                    if code:
                        self.assertIn("attention is not fused: emulated library: no plan", line["failure"])

    def test_comparison(self):
        """Results of the emulated program with PyTorch, which does not find a GPU, if it is installed at all."""
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(self.emulated_step, f"{folder}/bench_gpu_step")
            flags = ["--programs", folder, "--models", "lenet", "--rounds", "1", "--precisions", "tf32"]
            result = self.run_program(sys.executable, SCRIPT, *flags, *self.QUICK)
        self.assertEqual(result.returncode, 0, result.stderr)
        *runs, compared = map(json.loads, result.stdout.splitlines())
        self.assertEqual([one["bench"] for one in runs], ["gpu_step", "gpu_step"])
        self.assertEqual(compared["runs"]["cadre"], 2)
        self.assertEqual(set(compared["failures"]), set(gpu_step.MODES))

    def test_kernels(self):
        result = self.run_program(self.emulated_kernels, "--elements", "65536", "--side", "32",
                                  "--rounds", "1", "--shrink", "16")  # fmt: skip
        self.assertEqual(result.returncode, 0, result.stderr)
        first, *kernels = map(json.loads, result.stdout.splitlines())
        self.assertEqual(first["bench"], "gpu_kernels")
        self.assertGreater(first["copy_gbs"], 0)
        names = [line["kernel"] for line in kernels]
        self.assertEqual(len(names), len(set(names)))
        for name in ("update adamw", "encode topk", "batch norm add relu forward 7x7x512 batch 32 bf16",
                     "batch norm relu backward 56x56x64 batch 128 tf32", "lstm backward bf16",
                     "reorder weights bf16", "bias gradient tf32", "embedding backward tf32",
                     "convolution 3x3/1 4-4 at 3 forward bf16", "attention backward tf32"):  # fmt: skip
            self.assertIn(name, names)
        for line in kernels:
            self.assertGreater(line["us"], 0, line)
            rate = "gbs" if "gbs" in line else "tflops"
            self.assertIn(f"ceiling_{rate}", line)


if __name__ == "__main__":
    unittest.main()
