#!/usr/bin/env python3
"""How workers end, as a supervisor sees it: Kubernetes decides by the exit code whether a pod returns.

usage: endings_test.py REPOSITORY PROGRAMS
"""

import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from cluster import Cluster, wait_for

PROGRAMS = pathlib.Path(sys.argv.pop(2)).resolve()
ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
DRAINED = int(re.search(r"kExitDrained = (\d+);", (ROOT / "worker/main.cc").read_text())[1])
REFUSED = int(re.search(r"kExitRefused = (\d+);", (ROOT / "worker/main.cc").read_text())[1])


class EndingsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cluster = Cluster(self.folder.name, PROGRAMS)
        self.addCleanup(self.cluster.__exit__)

    def code(self, name):
        return self.cluster.processes[name].wait(timeout=60)

    def start(self, workers, *flags):
        self.cluster.start(workers=0)
        for i in range(workers):
            self.cluster.start_worker(f"worker-{i}", *flags)

    def test_drained_worker_returns_and_the_run_goes_on(self):
        self.assertEqual(DRAINED, 128 + signal.SIGTERM)
        self.start(4)
        run = self.cluster.submit(epochs=20)
        wait_for(lambda: self.cluster.run_state(run)["version"] > 3, "no version")
        self.cluster.processes["worker-1"].send_signal(signal.SIGTERM)
        self.assertEqual(self.code("worker-1"), DRAINED)
        # As the controller of a StatefulSet does.
        self.cluster.start_worker("worker-1")

        def whole():
            groups = [g for g in self.cluster.api("overview")["groups"] if g["run"] == run]
            names = [m["name"] for g in groups for m in g["members"]]
            return "worker-1" in names and len(names) == 4

        wait_for(whole, "the worker has no rank again")
        version = self.cluster.run_state(run)["version"]
        wait_for(lambda: self.cluster.run_state(run)["version"] > version + 3, "the run does not go on")
        wait_for(lambda: self.cluster.run_state(run)["groups_alive"] == 2, "a group is missing")

    def test_idle_worker_that_is_terminated_is_not_complete(self):
        self.start(1)
        wait_for(lambda: self.cluster.api("overview")["members"]["idle"] == 1, "no worker")
        self.cluster.processes["worker-0"].send_signal(signal.SIGTERM)
        self.assertEqual(self.code("worker-0"), DRAINED)

    def test_worker_that_the_operator_drains(self):
        self.start(1)
        wait_for(lambda: self.cluster.api("overview")["members"]["idle"] == 1, "no worker")
        self.cluster.cadre("drain", "worker-0")
        self.assertEqual(self.code("worker-0"), DRAINED)

    def test_workers_end_with_their_run(self):
        self.start(5, "--exit-when-done")
        run = self.cluster.submit(epochs=1)
        # Also the one without a rank.
        self.assertEqual({self.code(f"worker-{i}") for i in range(5)}, {0})
        self.assertEqual(self.cluster.run_state(run)["state"], "done")

    def test_workers_of_a_stopped_run_have_failed(self):
        self.start(4, "--exit-when-done")
        run = self.cluster.submit(epochs=50)
        wait_for(lambda: self.cluster.run_state(run)["version"] > 1, "no version")
        self.cluster.cadre("stop", run)
        self.assertEqual({self.code(f"worker-{i}") for i in range(4)}, {REFUSED})

    def test_programs_notify_systemd(self):
        self.cluster.start_coordinator()
        path = f"{self.folder.name}/notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
            supervisor.bind(path)
            supervisor.settimeout(20)
            command = [PROGRAMS / "cadre-worker", "--insecure", f"--coordinator={self.cluster.coordinator}"]
            worker = subprocess.Popen(
                command, env={"NOTIFY_SOCKET": path}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            self.assertEqual(supervisor.recv(100), b"READY=1")
            self.assertEqual(self.cluster.api("overview")["members"]["idle"], 1)
            worker.terminate()
            self.assertEqual(worker.wait(timeout=20), DRAINED)


if __name__ == "__main__":
    unittest.main()
