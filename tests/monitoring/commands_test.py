#!/usr/bin/env python3
"""Commands for looking at a cluster: output formats, conditions, exit codes.

usage: commands_test.py REPOSITORY PROGRAMS

The keys and types of the JSON of each verb are those of golden/VERB.json. CADRE_UPDATE_GOLDEN=1 adds what the verbs
print to these files; remove a file to write it anew.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import golden
from cluster import Cluster, get, wait_for

PROGRAMS = pathlib.Path(sys.argv.pop(2)).resolve()
del sys.argv[1]
DENIED, UNAVAILABLE, NOT_FOUND, USAGE = 5, 4, 3, 2


class CommandsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cluster = Cluster(cls.folder.name, PROGRAMS)
        cls.cluster.start(workers=4)
        assert cls.call("wait", "--for", "members=4", "--timeout", "30s")[0] == 0
        cls.run_id = cls.cluster.submit(epochs=2)
        assert cls.call("wait", cls.run_id, "--timeout", "60s")[0] == 0

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()
        cls.folder.cleanup()

    @classmethod
    def call(cls, *arguments, **variables):
        """(exit code, stdout, stderr), with the address of the coordinator in the environment."""
        environment = {**os.environ, "CADRE_COORDINATOR": cls.cluster.coordinator, **variables}
        command = [PROGRAMS / "cadre", *arguments, *([] if "--tls" in arguments else ["--insecure"])]
        result = subprocess.run(command, capture_output=True, text=True, timeout=80, env=environment)
        return result.returncode, result.stdout, result.stderr

    def output(self, *arguments):
        code, out, err = self.call(*arguments)
        self.assertEqual((code, err), (0, ""), arguments)
        return out

    def test_history_has_every_version_and_evaluation(self):
        lines = [json.loads(line) for line in self.output("history", self.run_id, "-o", "jsonl").splitlines()]
        whole = json.loads(self.output("history", self.run_id, "-o", "json"))
        self.assertEqual(whole["entries"], lines)
        self.assertEqual([entry["number"] for entry in lines], list(range(1, len(lines) + 1)))
        versions = [entry["commit"]["version"] for entry in lines if "commit" in entry]
        run = json.loads(self.output("runs", "-o", "json"))["runs"][0]
        self.assertEqual(versions, list(range(1, run["version"] + 1)))
        for entry in lines:
            self.assertEqual(("commit" in entry) + ("evaluation" in entry), 1)
            for times in entry.get("commit", {}).get("participants", []):
                self.assertGreater(times["train_seconds"], 0)
                self.assertGreater(times["stage_seconds"], 0)
        pulled = [t for e in lines[:-3] if "commit" in e for t in e["commit"]["participants"]]
        self.assertTrue(all(times["pull_seconds"] > 0 for times in pulled))
        tests = [entry["evaluation"]["accuracy"] for entry in lines if "evaluation" in entry]
        self.assertEqual(len(tests), 2)
        self.assertEqual(tests[-1], run["test"]["accuracy"])
        after = self.output("history", self.run_id, "--after", str(len(lines) - 1), "-o", "name")
        self.assertEqual(after, f"{len(lines)}\n")
        self.assertEqual(len(self.output("history", self.run_id).splitlines()), len(lines) + 1)

    def test_events(self):
        events = json.loads(self.output("events", "-o", "json"))
        kinds = [event["kind"] for event in events["events"]]
        self.assertEqual(kinds[0], "coordinator_started")
        for kind in ("member_joined", "run_submitted", "group_started", "evaluated", "run_state"):
            self.assertIn(kind, kinds)
        self.assertEqual(events["newest"], events["events"][-1]["number"])
        of_run = json.loads(self.output("events", self.run_id, "-o", "json"))["events"]
        self.assertEqual({event["run"] for event in of_run}, {self.run_id})
        self.assertEqual(len(self.output("events").splitlines()), len(kinds))
        follow = subprocess.Popen(
            [PROGRAMS / "cadre", "events", "--follow", "--insecure", "--coordinator", self.cluster.coordinator],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.assertIn("the coordinator has started", follow.stdout.readline())
        follow.terminate()
        follow.wait()
        follow.stdout.close()

    def test_names(self):
        self.assertEqual(self.output("runs", "-o", "name"), f"{self.run_id}\n")
        names = set(self.output("members", "-o", "name").split())
        self.assertLessEqual({"worker-0", "worker-3", "aggregator-0", "aggregator-1"}, names)

    def test_json_has_the_keys_of_the_golden_files(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(folder, PROGRAMS) as cluster:
            cluster.start(workers=5)
            address = {"CADRE_COORDINATOR": cluster.coordinator}

            def call(*arguments, expected=0):
                code, out, err = self.call(*arguments, **address)
                self.assertEqual(code, expected, err)
                return out

            call("wait", "--for", "members=5", "--timeout", "30s")
            run = cluster.submit(epochs=100)
            call("wait", run, "--for", "version=2")
            workers = json.loads(call("members", "-o", "json"))["workers"]
            idle = next(worker["name"] for worker in workers if not (worker["place"] or {}).get("run"))
            verbs = {
                "runs": [],
                "status": [],
                "describe": [run],
                "members": [],
                "events": [],
                "health": [],
                "version": [],
                "adopt": [],
                "trace": [run, "--output", f"{folder}/trace.json"],
                "cordon": [idle],
                "drain": [idle],
            }
            for verb, arguments in verbs.items():
                with self.subTest(verb):
                    golden.check(self, verb, [json.loads(call(verb, *arguments, "-o", "json"))])
            watch = subprocess.Popen(
                [PROGRAMS / "cadre", "watch", run, "-o", "json", "--insecure"],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **address},
            )
            self.addCleanup(watch.kill)
            call("stop", run)
            lines = watch.communicate(timeout=60)[0].splitlines()
            golden.check(self, "watch", [json.loads(line) for line in lines])
            golden.check(self, "wait", [json.loads(call("wait", run, "-o", "json", expected=1))])
        ended = {"runs": [], "status": [], "describe": [self.run_id], "history": [self.run_id], "events": []}
        for verb, arguments in {**ended, "wait": [self.run_id], "watch": [self.run_id]}.items():
            with self.subTest(verb, state="done"):
                golden.check(self, verb, [json.loads(self.output(verb, *arguments, "-o", "json"))])

    def test_the_name_of_a_run_stands_for_its_id(self):
        name = self.run_id.split("-", 2)[2]
        for verb in ("history", "events", "wait"):
            self.assertEqual(self.output(verb, name, "-o", "json"), self.output(verb, self.run_id, "-o", "json"), verb)
        self.assertEqual(json.loads(self.output("watch", name, "-o", "json"))["run"]["run"], self.run_id)
        self.assertEqual(json.loads(self.output("describe", name, "-o", "json"))["runs"][0]["run"], self.run_id)
        self.output("wait", name, "--for", "state=done")
        file = pathlib.Path(self.folder.name) / "named.safetensors"
        self.assertEqual(self.call("export", name, "-O", file)[0], 0)
        self.assertEqual(self.cluster.api(f"runs/{name}/history"), self.cluster.api(f"runs/{self.run_id}/history"))
        second = self.cluster.submit(epochs=100)
        code, _, err = self.call("delete", name)
        self.assertEqual(code, 1, err)
        self.assertIn(f"2 runs are named '{name}': {self.run_id}, {second}", err)
        self.assertEqual(self.call("stop", name)[0], 0)
        self.assertEqual(self.call("delete", second)[0], 0)

    def test_export_of_a_run(self):
        file = pathlib.Path(self.folder.name) / "model.safetensors"
        code, _, err = self.call("export", self.run_id, "-O", file)
        self.assertEqual(code, 0, err)
        run = json.loads(self.output("runs", "-o", "json"))["runs"][0]
        self.assertEqual(err, f"wrote {file} (4 tensors of version {run['version']}, step {run['step']})\n")
        size = int.from_bytes(file.read_bytes()[:8], "little")
        head = json.loads(file.read_bytes()[8 : 8 + size])
        self.assertEqual(head["conv1/weight"]["shape"], [8, 1, 5, 5])
        code, _, err = self.call("export", "run-99", "-O", file)
        self.assertEqual(code, NOT_FOUND)
        self.assertIn("no such run: run-99", err)
        self.assertIn("'run-99' is neither a path nor a run", err)
        missing = file.parent / "nowhere" / "model.safetensors"
        code, _, err = self.call("export", self.run_id, "-O", missing)
        self.assertEqual(code, NOT_FOUND)
        self.assertIn(str(missing), err)
        self.assertNotIn("neither a path nor a run", err)

    def test_conditions(self):
        self.output("wait", self.run_id, "--for", "version=10")
        self.output("wait", self.run_id, "--for", "state=done")
        code, _, err = self.call("wait", self.run_id, "--for", "state=failed")
        self.assertEqual(code, 1)
        self.assertIn("is done at version", err)
        code, _, err = self.call("wait", "--for", "members=99", "--timeout", "600ms")
        self.assertEqual(code, UNAVAILABLE)
        for text in ("members", "state=finished", "version=ten", "loss=1"):
            code, _, err = self.call("wait", self.run_id, "--for", text)
            self.assertEqual(code, USAGE, text)
            self.assertIn("--for takes state=STATE, members=N or version=N", err)
        self.assertEqual(self.call("wait")[0], USAGE)
        self.assertEqual(self.call("wait", "run-99", "--for", "version=1")[0], NOT_FOUND)

    def test_health(self):
        self.assertEqual(self.call("health"), (0, "healthy\n", ""))
        with tempfile.TemporaryDirectory() as folder, Cluster(folder, PROGRAMS) as cluster:
            cluster.start_coordinator()
            cluster.start_aggregator("a")
            address = {"CADRE_COORDINATOR": cluster.coordinator}
            wait_for(lambda: "a" in self.call("members", "-o", "name", **address)[1], "no aggregator")
            cluster.kill("a")
            wait_for(lambda: self.call("health", **address)[0] == 1, "healthy without its aggregator")
            self.assertEqual(self.call("health", **address)[1], "aggregator a is away\n")
            cluster.kill("coordinator")
            self.assertEqual(self.call("health", "--timeout", "1s", **address)[0], UNAVAILABLE)

    def test_health_of_a_run_without_its_aggregator(self):
        """Also when the aggregator has ended in order, or its lease has expired."""
        with tempfile.TemporaryDirectory() as folder, Cluster(folder, PROGRAMS) as cluster:
            cluster.start(workers=4)
            address = {"CADRE_COORDINATOR": cluster.coordinator}
            self.assertEqual(self.call("wait", "--for", "members=4", "--timeout", "30s", **address)[0], 0)
            run = cluster.submit(epochs=100)
            self.assertEqual(self.call("wait", run, "--for", "version=1", "--timeout", "60s", **address)[0], 0)
            cluster.processes["aggregator-1"].terminate()
            cluster.processes["aggregator-1"].wait(timeout=20)
            problem = f"run {run}: waiting for aggregator aggregator-1, away for "

            def unhealthy():
                code, out, err = self.call("health", **address)
                return code == 1 and out.startswith(problem) and out.count("\n") == 1 and not err

            wait_for(unhealthy, "healthy without its aggregator")
            metrics = get(cluster.metrics["coordinator"], "/metrics")[2].decode()
            self.assertIn('\ncadre_aggregators{state="away"} 1\n', metrics)
            cluster.start_aggregator("aggregator-1")
            wait_for(lambda: self.call("health", **address)[0] == 0, "not healthy again")

    def test_denied(self):
        folder = pathlib.Path(self.folder.name)
        certs = folder / "certs"
        subprocess.run([PROGRAMS / "cadre", "certs", "init", "--ca", certs], check=True, capture_output=True)
        for role in ("coordinator", "viewer"):
            issue = ["certs", "issue", role, "me", "--ca", certs, "--out", certs / role]
            subprocess.run([PROGRAMS / "cadre", *issue], check=True, capture_output=True)
        command = [PROGRAMS / "cadre-coordinator", "--listen=127.0.0.1:0", f"--store={folder}/tls.db"]
        port = folder / "port"
        server = subprocess.Popen(
            [*command, f"--tls={certs}/coordinator", f"--port-file={port}"],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        wait_for(port.exists, "no port")
        address = {"CADRE_COORDINATOR": f"127.0.0.1:{port.read_text().strip()}"}
        viewer = ("--tls", str(certs / "viewer"))
        self.assertEqual(self.call("health", *viewer, **address)[0], 0)
        self.assertEqual(self.call("stop", "run-1", *viewer, **address)[0], DENIED)


if __name__ == "__main__":
    unittest.main()
