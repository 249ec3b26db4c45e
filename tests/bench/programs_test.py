#!/usr/bin/env python3
"""bench_allreduce runs over every transport, reports correct sums, and rejects unknown options;
bench_engine finds models in any working directory; bench_coordinator counts what it has sent;
bench_aggregator applies rounds of every kind; bench_step times steps of two processes; keep_runs.py stands for the
programs that start clusters.

usage: programs_test.py REPOSITORY BENCH_ALLREDUCE BENCH_ENGINE BENCH_COORDINATOR BENCH_AGGREGATOR BENCH_STEP
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(sys.argv.pop(1))
ALLREDUCE = os.path.abspath(sys.argv.pop(1))
ENGINE = os.path.abspath(sys.argv.pop(1))
COORDINATOR = os.path.abspath(sys.argv.pop(1))
AGGREGATOR = os.path.abspath(sys.argv.pop(1))
STEP = os.path.abspath(sys.argv.pop(1))
QUICK = ("--repeat", "2", "--budget", "0.2", "--min", "1K", "--max", "64K", "--factor", "8")
FIELDS = {"transport": str, "algorithm": str, "chosen": str, "ranks": int, "dtype": str,
          "in_place": bool, "bytes": int, "seconds": float, "min_seconds": float,
          "algbw": float, "busbw": float, "errors": int}  # fmt: skip


def run(*flags):
    return subprocess.run([ALLREDUCE, *flags], capture_output=True, text=True, timeout=100)


class AllReduceTest(unittest.TestCase):
    def lines(self, *flags):
        result = run(*QUICK, *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        for line in lines:
            self.assertValid(line)
        return lines

    def assertValid(self, line):
        for field, kind in FIELDS.items():
            self.assertIsInstance(line[field], kind, field)
        self.assertEqual(line["errors"], 0, line)
        self.assertGreater(line["min_seconds"], 0)
        self.assertLessEqual(line["min_seconds"], line["seconds"])
        self.assertAlmostEqual(line["algbw"] * line["seconds"] * 1e9 / line["bytes"], 1)
        factor = 2 * (line["ranks"] - 1) / line["ranks"]
        self.assertAlmostEqual(line["busbw"] / line["algbw"], factor)

    def test_line_for_each_size(self):
        lines = self.lines("--ranks", "2", "--transport", "shm", "--algorithm", "ring")
        self.assertEqual([line["bytes"] for line in lines], [1 << 10, 1 << 13, 1 << 16])
        self.assertEqual({line["chosen"] for line in lines}, {"ring"})

    def test_every_transport_and_algorithm(self):
        transports = ("shm", "tcp")
        algorithms = ("auto", "ring", "butterfly", "halving-doubling")
        lines = self.lines("--transport", ",".join(transports), "--algorithm", ",".join(algorithms))
        seen = {(line["transport"], line["algorithm"]) for line in lines}
        self.assertEqual(seen, {(t, a) for t in transports for a in algorithms})
        for line in lines:
            if line["algorithm"] == "auto":
                self.assertIn(line["chosen"], algorithms[1:4])
                self.assertGreater(line["ratio_to_best"], 0)
            else:
                self.assertEqual(line["chosen"], line["algorithm"])

    def test_more_ranks_than_a_power_of_two_and_other_types(self):
        for dtype in ("bf16", "fp16"):
            lines = self.lines("--ranks", "3", "--transport", "shm,tcp", "--dtype", dtype,
                               "--algorithm", "ring,butterfly,halving-doubling")  # fmt: skip
            self.assertEqual({line["ranks"] for line in lines}, {3})

    def test_out_of_place(self):
        lines = self.lines("--in_place", "both", "--transport", "tcp", "--algorithm", "butterfly")
        self.assertEqual([line["in_place"] for line in lines], [True, False] * 3)

    def test_comparison_with_a_plain_exchange(self):
        for line in self.lines("--transport", "tcp", "--compare", "socket"):
            expected = line["socket_seconds"] / line["seconds"]
            self.assertAlmostEqual(line["share_of_socket"], expected)

    def test_one_rank(self):
        for line in self.lines("--ranks", "1", "--transport", "shm"):
            self.assertEqual(line["busbw"], 0)

    def test_gloo_or_the_package_it_needs(self):
        result = run(*QUICK, "--transport", "shm", "--compare", "gloo")
        if result.returncode == 0:
            for line in map(json.loads, result.stdout.splitlines()):
                expected = line["gloo_seconds"] / line["seconds"]
                self.assertAlmostEqual(line["ratio_to_gloo"], expected)
        else:
            self.assertIn("libgloo-dev", result.stderr)


    def test_rejects_flags(self):
        for word, *flags in (
            ("'shmem'", "--transport", "shmem"),
            ("'int8'", "--dtype", "int8"),
            ("'12X'", "--min", "12X"),
            ("--repeat", "--repeat", "0"),
            ("'perhaps'", "--in_place", "perhaps"),
            ("--speed", "--speed", "9"),
        ):
            with self.subTest(flags):
                result = run(*flags)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertIn(word, result.stderr)


class EngineTest(unittest.TestCase):
    KEYS = ("model", "precision", "batch", "threads", "ranks", "model_ranks", "space_ranks", "parameters",
            "samples_per_second", "step_ms", "exposed_communication_share", "first_loss",
            "last_loss", "activation_bytes", "peak_resident_bytes", "cpu", "instruction_sets")  # fmt: skip
    QUICK = ("--batch", "4", "--steps", "2", "--warmup", "1")

    def engine(self, *flags):
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run([ENGINE, *self.QUICK, *flags], capture_output=True, text=True,
                                  timeout=100, cwd=folder)  # fmt: skip

    def test_model_of_the_zoo_in_any_folder(self):
        result = self.engine("--model", "lenet", "--ranks", "2")
        self.assertEqual(result.returncode, 0, result.stderr)
        line = json.loads(result.stdout)
        self.assertLessEqual(set(self.KEYS), set(line))
        self.assertEqual((line["bench"], line["ranks"]), ("engine", 2))

    def test_profile(self):
        line = json.loads(self.engine("--profile", "--layers").stdout)
        self.assertGreater(line["peak_gflops"], 0)
        self.assertLessEqual({"ms", "share", "gflops", "of_peak"},
                             set(line["operations"]["convolution_forward"]))  # fmt: skip
        self.assertIn("conv1 convolution_forward", [layer["op"] for layer in line["layers"]])

    def test_precisions(self):
        line = json.loads(self.engine("--precision", "fp32").stdout)
        self.assertEqual(line["precision"], "fp32")
        result = self.engine("--precision", "bf16")
        if "avx512_bf16" in line["instruction_sets"]:
            self.assertEqual(json.loads(result.stdout)["precision"], "bf16")
        else:
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn("precision BF16 needs a processor with AVX512_BF16", result.stderr)
        result = self.engine("--precision", "fp16")
        self.assertEqual(result.returncode, 2)
        self.assertIn("must be fp32 or bf16, not 'fp16'", result.stderr)

    def test_unknown_model(self):
        result = self.engine("--model", "lenett")
        self.assertEqual(result.returncode, 1)
        self.assertIn("lenett", result.stderr)


class CoordinatorTest(unittest.TestCase):
    GROUPS = ("--groups", "2", "--ranks", "4")

    def coordinator(self, *flags):
        return subprocess.run([COORDINATOR, *self.GROUPS, *flags], capture_output=True, text=True,
                              timeout=100)  # fmt: skip

    def line(self, *flags):
        result = self.coordinator(*flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        line = json.loads(result.stdout)
        self.assertEqual(line["bench"], "coordinator")
        self.assertIn("cpu", line)
        return line

    def assertTimes(self, times, least):
        self.assertGreaterEqual(times["count"], least)
        self.assertGreater(times["p50_ms"], 0)
        self.assertLessEqual(times["p50_ms"], times["p99_ms"])
        self.assertLessEqual(times["p99_ms"], times["max_ms"])

    def test_state_machine(self):
        line = self.line("--members", "200", "--seconds", "0.3")
        self.assertEqual((line["joined"], line["groups"], line["runs"]), (200, 25, 13))
        # Groups that lost a member may be incomplete at the end.
        self.assertLessEqual(line["placed"], 100)
        self.assertEqual(line["heartbeats"], line["events"]["heartbeat"]["count"])
        self.assertGreater(line["heartbeats_per_second_per_core"], 0)
        self.assertGreater(line["rounds_committed"], 0)
        self.assertEqual(line["leases_lost"], line["events"]["lease_loss"]["count"])
        self.assertEqual(line["leases_lost"], line["events"]["join"]["count"])
        for kind in ("heartbeat", "progress", "contributed", "commit", "adopted", "join",
                     "lease_loss", "status_page"):  # fmt: skip
            self.assertTimes(line["events"][kind], 1)

    def test_streams(self):
        line = self.line("--streams", "20", "--seconds", "1.2", "--round_seconds", "0.1",
                         "--lease_ms", "3000")  # fmt: skip
        self.assertEqual((line["streams"], line["groups"], line["heartbeat_ms"]), (20, 2, 750))
        self.assertEqual(line["heartbeats_handled"], line["heartbeats_sent"])
        self.assertGreaterEqual(line["heartbeats_sent"], 20)
        self.assertEqual((line["leases_lost"], line["streams_broken"]), (0, 0))
        self.assertGreater(line["rounds_committed"], 0)
        self.assertTimes(line["heartbeat_handled"], 1)
        self.assertTimes(line["status"], 1)
        self.assertGreater(line["status_page_bytes"], 0)

    def test_rejects_flags(self):
        for word, *flags in (("--members", "--members", "0"), ("--placed", "--placed", "1.5"),
                             ("--seconds", "--seconds", "0")):  # fmt: skip
            with self.subTest(flags):
                result = self.coordinator(*flags)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertIn(word, result.stderr)

    def test_names_the_limit_of_open_files(self):
        result = self.coordinator("--streams", "2000000000")
        self.assertEqual(result.returncode, 1)
        self.assertIn("2000000256 are needed", result.stderr)


class AggregatorTest(unittest.TestCase):
    def aggregator(self, *flags):
        return subprocess.run([AGGREGATOR, *flags], capture_output=True, text=True, timeout=100)

    def test_every_kind_of_round(self):
        with tempfile.TemporaryDirectory() as folder:
            result = self.aggregator("--data-dir", folder, "--groups", "3", "--megabytes", "1",
                                     "--streams", "2", "--threads", "2", "--rounds", "2")  # fmt: skip
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(os.listdir(folder), [])
        limits, *lines, start = map(json.loads, result.stdout.splitlines())
        self.assertEqual(limits["measurement"], "limits")
        self.assertEqual(start["measurement"], "start")
        self.assertGreater(start["bytes"], 3e6)
        self.assertGreaterEqual(start["verified_seconds"], start["listens_seconds"])
        for field in ("copy", "grpc", "disk"):
            self.assertGreater(limits[f"{field}_gb_per_second"], 0)
        kinds = ("mean", "outer", "int8", "e3m0+outer")
        self.assertEqual([(line["round"], line["measurement"]) for line in lines],
                         [(kind, step) for kind in kinds
                          for step in ("receive", "apply", "pull")])  # fmt: skip
        bytes_of = {line["round"]: line["bytes"] for line in lines if "bytes" in line}
        self.assertLess(abs(bytes_of["mean"] / bytes_of["int8"] - 4), 0.1)
        self.assertLess(abs(bytes_of["mean"] / bytes_of["e3m0+outer"] - 8), 0.2)
        for line in lines:
            self.assertIn("cpu", line)
            self.assertGreater(line["seconds"], 0)
            self.assertGreater(line["gb_per_second"], 0)

    def test_rejects_flags(self):
        for word, *flags in (("--data-dir", "--groups", "2"), ("--groups", "--groups", "0"),
                             ("--megabytes", "--megabytes", "0")):  # fmt: skip
            with self.subTest(flags):
                result = self.aggregator(*flags)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertIn(word, result.stderr)


class StepTest(unittest.TestCase):
    def lines(self, *flags):
        with socket.socket() as first, socket.socket() as second:
            for each in (first, second):
                each.bind(("127.0.0.1", 0))
            peers = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second))
        ranks = [subprocess.Popen([STEP, *flags, "--peers", peers, "--rank", str(rank)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) for rank in range(2)]  # fmt: skip
        results = [rank.communicate(timeout=100) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], results)
        self.assertEqual(results[1][0], "")
        return [json.loads(line) for line in results[0][0].splitlines()]

    def test_overlap(self):
        lines = self.lines("--model", "lenet", "--batch", "4", "--steps", "1", "--rounds", "2")
        self.assertEqual([line["config"] for line in lines],
                         ["data:ring:off", "data:ring:on", "data:auto:on", "model:auto:on"])  # fmt: skip
        self.assertEqual(lines[0]["ratio_to_first"], 1)
        for line in lines:
            self.assertGreater(min(line["step_ms"], line["sent_bytes_per_step"]), 0, line)

    def test_plan_error(self):
        *plans, pick = self.lines("--what", "plan-error", "--models", "lenet:4", "--seconds", "0.1", "--strategies",
                                  "batch,auto")  # fmt: skip
        self.assertEqual((pick["bench"], pick["plans"], plans[0]["mesh"]), ("plan_pick", len(plans), "data=2 model=1"))
        for line in plans:
            ratio = line["predicted"]["step_ms"] / line["measured"]["step_ms"]
            self.assertAlmostEqual(line["error"], ratio - 1, delta=0.01)

    def test_makespan(self):
        (line,) = self.lines("--what", "makespan", "--model", f"{ROOT}/bench/makespan/diamond.textproto", "--times",
                             "a:2:2,b:4:4,c:3:3,d:2:2", "--unit_ms", "20", "--steps", "1")  # fmt: skip
        self.assertEqual((line["makespan_units"], line["activation_bytes"]), (16, line["planned_activation_bytes"]))
        self.assertGreaterEqual(line["step_units"], 16)

    def test_rejects_flags(self):
        for word, *flags in (("--what", "--what", "nothing"), ("--steps", "--steps", "0")):
            result = subprocess.run([STEP, *flags], capture_output=True, text=True, timeout=100)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertIn(word, result.stderr)


class ClusterTest(unittest.TestCase):
    def test_keep_runs(self):
        with tempfile.NamedTemporaryFile() as output:
            command = [sys.executable, f"{ROOT}/bench/keep_runs.py", "--bin", os.path.dirname(STEP), "--runs", "3",
                       "--every", "1", "--warm-up", "2", "--keep", "1", "--output", output.name]  # fmt: skip
            result = subprocess.run(command, capture_output=True, text=True, timeout=100)
            self.assertEqual(result.stdout, output.read().decode(), result.stderr)
        *points, verdict = map(json.loads, result.stdout.splitlines())
        self.assertEqual([(line["runs"], line["kept"]) for line in points], [(1, [1, 1]), (2, [1, 1]), (3, [1, 1])])
        self.assertLess(verdict["aggregator_growth"], 0.05)
        self.assertLess(verdict["restart_seconds"], 30)


if __name__ == "__main__":
    unittest.main()
