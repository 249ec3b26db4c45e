#!/usr/bin/env python3
"""Metrics, probes, alert rules and logs of running programs.

usage: metrics_test.py REPOSITORY PROGRAMS
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from cluster import Cluster, get, wait_for

PROGRAMS = pathlib.Path(sys.argv.pop(2)).resolve()
ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
DOCUMENTED = ROOT / "docs/metrics.md"
MONITORING = ROOT / "deploy/monitoring"


def promtool(*arguments, text=None):
    return subprocess.run(
        ["promtool", *arguments], input=text, capture_output=True, text=True, timeout=60, cwd=MONITORING
    )


def scrape(address):
    status, headers, body = get(address, "/metrics")
    if status != 200 or "version=0.0.4" not in headers["Content-Type"]:
        raise AssertionError(f"{address}: {status} {headers}")
    return body.decode()


def names(text):
    return set(re.findall(r"^# TYPE (\S+)", text, re.M))


def series(text):
    """The series without those of histograms' buckets: name and labels."""
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def value(text, name):
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)[1])


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cluster = Cluster(cls.folder.name, PROGRAMS)
        cls.cluster.start(workers=4)
        for name in ("aggregator-0", "aggregator-1", *(f"worker-{i}" for i in range(4))):
            cls.cluster.metrics[name] = cls.cluster.line(name, "metrics on http://").partition("/")[0]
        cls.run_id = cls.cluster.submit(epochs=30)
        wait_for(lambda: cls.cluster.run_state(cls.run_id)["test"], "no evaluation")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()
        cls.folder.cleanup()

    def test_format_and_names(self):
        documented = set(re.findall(r"^\| `([a-z_]+)`", DOCUMENTED.read_text(), re.M))
        found = set()
        for _ in range(2):
            for name in ("coordinator", "aggregator-0", "worker-0"):
                text = scrape(self.cluster.metrics[name])
                checked = promtool("check", "metrics", text=text)
                self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""), name)
                found |= names(text)
        rare = set(re.findall(r"^\| `([a-z_]+)` \*", DOCUMENTED.read_text(), re.M))
        self.assertEqual(found - rare, documented - rare)

    def test_values_follow_the_run(self):
        first = scrape(self.cluster.metrics["coordinator"])
        labels = f'{{run="{self.run_id}"}}'
        rounds = f"cadre_run_rounds_total{labels}"
        wait_for(
            lambda: value(scrape(self.cluster.metrics["coordinator"]), rounds) > value(first, rounds) + 2,
            "rounds are not counted",
        )
        self.assertEqual(value(first, 'cadre_workers{state="busy"}'), 4)
        self.assertEqual(value(first, f"cadre_run_groups_alive{labels}"), 2)
        self.assertLess(value(first, f"cadre_run_round_age_seconds{labels}"), 30)
        furthest = value(first, f"cadre_run_furthest_step{labels}")
        self.assertGreaterEqual(furthest, value(first, f"cadre_run_step{labels}"))
        self.assertGreater(value(first, "cadre_store_commit_seconds_count"), 10)
        aggregators = [scrape(self.cluster.metrics[f"aggregator-{i}"]) for i in range(2)]
        self.assertGreater(sum(value(text, "cadre_contribution_sync_seconds_count") for text in aggregators), 0)
        steps = value(scrape(self.cluster.metrics["worker-0"]), "cadre_steps_total")
        self.assertGreater(steps, 10)

    def test_series_do_not_grow_with_workers(self):
        def of_members(text):
            return {s for s in series(text) if not s.startswith(("grpc_server_handled", "cadre_refusals"))}

        before = of_members(scrape(self.cluster.metrics["coordinator"]))
        for i in range(3):
            self.cluster.start_worker(f"extra-{i}")
        idle = 'cadre_workers{state="idle"}'
        wait_for(lambda: value(scrape(self.cluster.metrics["coordinator"]), idle) == 3, "no idle worker")
        after = scrape(self.cluster.metrics["coordinator"])
        self.assertEqual(of_members(after) - before, set())
        self.assertNotIn("worker-", after)
        self.assertNotIn("extra-", after)

    def test_probes(self):
        for name in ("coordinator", "aggregator-0", "worker-0"):
            for path, body in (("/healthz", b"ok\n"), ("/readyz", b"ready\n")):
                self.assertEqual(get(self.cluster.metrics[name], path)[::2], (200, body), (name, path))
        self.assertEqual(get(self.cluster.metrics["coordinator"], "/")[0], 404)


class LossTest(unittest.TestCase):
    def test_members_without_coordinator_are_not_ready(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(folder, PROGRAMS) as cluster:
            cluster.start_coordinator()
            cluster.start_aggregator("a")
            cluster.start_worker("w")
            addresses = [cluster.line(name, "metrics on http://").partition("/")[0] for name in "aw"]
            for address in addresses:
                wait_for(lambda a=address: get(a, "/readyz")[0] == 200, "not ready")
            cluster.kill("coordinator")
            for address in addresses:
                wait_for(lambda a=address: get(a, "/readyz")[0] == 503, "ready without a coordinator")
                self.assertEqual(get(address, "/healthz")[0], 200)
                self.assertEqual(value(scrape(address), "cadre_connected"), 0)


class LogTest(unittest.TestCase):
    def test_json_lines(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(folder, PROGRAMS) as cluster:
            flags = (f"--store={folder}/c.db", "--listen=127.0.0.1:0", "--log-format=json")
            cluster.spawn("c", "cadre-coordinator", *flags)
            cluster.line("c", "listening on ")
            cluster.processes["c"].terminate()
            self.assertEqual(cluster.processes["c"].wait(timeout=20), 0)
            for line in cluster.logs["c"][0].read_text().splitlines():
                entry = json.loads(line)
                self.assertEqual(list(entry), ["time", "severity", "file", "line", "message"])
                self.assertRegex(entry["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")

    def test_other_format_is_refused(self):
        for program in ("cadre-coordinator", "cadre-worker"):
            result = subprocess.run(
                [PROGRAMS / program, "--log-format=xml"], capture_output=True, text=True, timeout=20
            )
            self.assertEqual(result.returncode, 2)
            self.assertIn("--log-format must be text or json, not 'xml'", result.stderr)


class RulesTest(unittest.TestCase):
    def test_rules_and_their_tests(self):
        checked = promtool("check", "rules", "alerts.yaml")
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        tested = promtool("test", "rules", "alerts_test.yaml")
        self.assertEqual(tested.returncode, 0, tested.stdout + tested.stderr)

    def test_each_planted_fault_is_found(self):
        """A rule that never fires, always fires or fires too late must fail its test."""
        rules = (MONITORING / "alerts.yaml").read_text()
        alerts = re.findall(r"- alert: (\w+)\n( {8}expr: .*(?:\n {10}.*)*)\n( {8}for: .*)\n", rules)
        self.assertGreaterEqual(len(alerts), 10)
        self.assertEqual(len(alerts), rules.count("- alert: "))
        for alert, expression, duration in alerts:
            text = f"- alert: {alert}\n{expression}\n{duration}\n"
            faults = (
                text.replace(expression, "        expr: vector(1) > 2"),
                text.replace(expression, "        expr: vector(1)"),
                text.replace(duration, "        for: 10h"),
            )
            for fault in faults:
                with self.subTest(fault), tempfile.TemporaryDirectory() as folder:
                    shutil.copy(MONITORING / "alerts_test.yaml", folder)
                    broken = rules.replace(text, fault)
                    self.assertNotEqual(broken, rules)
                    (pathlib.Path(folder) / "alerts.yaml").write_text(broken)
                    tested = promtool("test", "rules", f"{folder}/alerts_test.yaml")
                    self.assertNotEqual(tested.returncode, 0)
                    self.assertIn(f"alertname: {alert}", tested.stdout + tested.stderr)

    def test_rules_use_documented_metrics_and_anchors(self):
        documented = set(re.findall(r"^\| `([a-z_]+)`", DOCUMENTED.read_text(), re.M))
        operations = (ROOT / "docs/operations.md").read_text()
        dashboard = (MONITORING / "grafana.json").read_text()
        for text in ((MONITORING / "alerts.yaml").read_text(), dashboard):
            used = set(re.findall(r"\b((?:cadre|grpc_server|process)_[a-z_]+)", text))
            suffixes = re.compile(r"_(bucket|count|sum)$")
            self.assertEqual({suffixes.sub("", name) for name in used} - documented, set())
        for alert in re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yaml").read_text()):
            self.assertIn(f"### {alert}\n", operations)
            self.assertIn(f"operations.md#{alert.lower()}", (MONITORING / "alerts.yaml").read_text())


if __name__ == "__main__":
    unittest.main()
