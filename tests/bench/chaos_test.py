#!/usr/bin/env python3
"""bench/chaos kills processes of a small cluster on loopback, and its checker notices what is wrong.

usage: chaos_test.py REPOSITORY PROGRAMS
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
PROGRAMS = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "bench"))

from chaos_rig import replay, report  # noqa: E402
from chaos_rig.history import History  # noqa: E402

KEYS = {"step_efficiency", "faults", "next_commit_s", "rejoin_s", "stalled_groups_s", "replay_equal"}
SMALL = ("--no-namespaces", "--bin", PROGRAMS, "--groups", "2", "--ranks", "1", "--spares", "0", "--width", "32",
         "--every-steps", "400", "--reference-minutes", "0.05")  # fmt: skip


class RigTest(unittest.TestCase):
    def test_kills(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [ROOT / "bench/chaos", *SMALL, "--keep", folder, "--minutes", "0.1", "--faults_per_hour", "1800",
                       "--kinds", "kill_worker,kill_aggregator"]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=200)
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
            result = json.loads(done.stdout)
            self.assertLessEqual(KEYS, set(result))
            self.assertEqual((result["faults"], result["replay_equal"], result["violations"]), (3, True, []))
            self.assertGreater(result["rounds"], 5)
            self.assertEqual(result["replayed_rounds"], result["rounds"])
            self.assertGreater(result["step_efficiency"], 0)
            self.assert_replay_notices(pathlib.Path(folder), result["rounds"])

    def assert_replay_notices(self, folder, rounds):
        """One bit of the last version, a lost contribution, a wrong weight."""
        records = replay.commits(folder / "coordinator/store.db", "run-1-chaos")
        last = max(records)
        only = {last: records[last]}
        archive = folder / "archive"
        self.assertTrue(replay.replay(archive, only)["replay_equal"])
        version = archive / f"aggregator-1/version-{last}"
        content = version.read_bytes()
        version.write_bytes(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])
        self.assertEqual(replay.replay(archive, only)["differences"], [f"version {last} on aggregator-1"])
        version.write_bytes(content)
        if len(records[last]["participants"]) == 2:
            records[last]["participants"][0]["samples"] += 1
            self.assertFalse(replay.replay(archive, only)["replay_equal"])
        next(archive.glob(f"aggregator-0/stage-{last}-*")).unlink()
        self.assertEqual(replay.replay(archive, records)["replayed_rounds"], rounds - 1)


class CheckerTest(unittest.TestCase):
    """Twenty rounds of 10 steps, one a second, with a pause of 6 seconds after the tenth."""

    def setUp(self):
        history = History("/dev/null")
        self.addCleanup(history.file.close)
        history.commits = {v: float(v if v <= 10 else v + 6) for v in range(1, 21)}
        records = {v: {"step": 10 * v, "participants": [{"samples": 5}, {"samples": 5}][: 1 + (v <= 10)]}
                   for v in history.commits}  # fmt: skip
        self.checker = report.Checker(argparse.Namespace(groups=1), history, records)

    def test_efficiency(self):
        self.assertEqual(self.checker.reference(0, 9.5), (10, 10))
        self.assertEqual(self.checker.steps(9.5, 19.5), 40)
        self.assertEqual(self.checker.samples(9.5, 19.5), 25)

    def test_late(self):
        self.checker.reference(0, 9.5)
        self.assertEqual(self.checker.late(10.5, 11.5), 6)
        self.assertEqual(self.checker.late(20.5, 21.5), 0)
        self.assertEqual(self.checker.next_commit(10.5), 17)

    def test_too_short_a_reference(self):
        with self.assertRaises(RuntimeError):
            self.checker.reference(0, 2.5)


if __name__ == "__main__":
    unittest.main()
