#!/usr/bin/env python3
"""The Helm chart renders the same objects as the manifests, and valid ones for all other values.

usage: chart_test.py REPOSITORY
"""

import json
import pathlib
import subprocess
import sys
import unittest

import behaviour
import manifests
import manifests_rules
import tools

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
FOLDER = ROOT / "deploy/kubernetes"
CHART = ROOT / "deploy/helm/cadre"
RULES = manifests_rules.Rules(ROOT)


def helm(*arguments):
    command = [tools.find("bin/helm"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def template(namespace="cadre", **values):
    """The objects that `helm install` would create. `values`: nested, as in values.yaml."""
    options = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    result = helm("template", "cadre", CHART, f"--namespace={namespace}", *options)
    if result.returncode != 0:
        raise ValueError(result.stderr)
    return manifests.parse(result.stdout)


def by_name(objects):
    return {manifests.label(item): item for item in objects}


class ChartTest(unittest.TestCase):
    maxDiff = None

    def test_lint(self):
        result = helm("lint", "--strict", CHART)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_default_values_render_the_manifests(self):
        self.assertEqual(by_name(template()), by_name(RULES.render(FOLDER)))

    def test_gpu_values_render_the_gpu_overlay(self):
        memory = {"request": "8Gi", "limit": "16Gi"}
        rendered = template(workers={"gpu": True, "threads": 4, "memory": memory})
        self.assertEqual(by_name(rendered), by_name(RULES.render(FOLDER / "gpu")))

    def test_components_render_the_components(self):
        text = (
            "resources: [../base, ../worker, ../worker-network]\nnamespace: cadre\n"
            "components: [../components/cert-manager, ../components/checkpoints]\n"
        )
        rendered = template(certManager=True, checkpoints={"enabled": True})
        self.assertEqual(by_name(rendered), by_name(RULES.overlay(text)))

    def test_database_renders_the_standby_coordinators(self):
        text = (
            "resources: [../base, ../worker, ../worker-network]\nnamespace: cadre\n"
            "components: [../components/standby-coordinators]\n"
        )
        rendered = template(coordinator={"replicas": 2, "database": {"secret": "cadre-database"}})
        self.assertEqual(by_name(rendered), by_name(RULES.overlay(text)))

    def test_database_has_another_secret_and_port(self):
        rendered = by_name(template(coordinator={"replicas": 3, "database": {"secret": "mine", "port": 6432}}))
        policy = rendered["NetworkPolicy/coordinator-database"]["spec"]
        self.assertEqual(policy["egress"], [{"ports": [{"protocol": "TCP", "port": 6432}]}])
        text = json.dumps(rendered["StatefulSet/cadre-coordinator"])
        self.assertNotIn("cadre-database", text)
        self.assertEqual(text.count('"mine"'), 2)

    def test_other_values_are_valid(self):
        variants = (
            {"coordinator": {"replicas": 3, "database": {"secret": "mine"}}, "workers": {"gpu": True}},
            {"coordinator": {"database": {"secret": "mine"}}, "checkpoints": {"enabled": True}},
            {"aggregators": {"replicas": 5, "storage": "1Ti"}, "certManager": True},
            {"workers": {"replicas": 100, "threads": 16}},
            {"workers": {"gpu": True}, "checkpoints": {"enabled": True, "storageClass": "shared"}},
            {
                "workers": {
                    "args": ["--data-root=/data"],
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}],
                    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
                }
            },
            {"image": {"repository": "example.org/cadre", "tag": "1.2.3"}, "createNamespace": True},
        )
        for values in variants:
            with self.subTest(values):
                objects = template(namespace="elsewhere", **values)
                self.assertEqual(RULES.problems(objects) + RULES.behaviours(objects), [])

    def test_invalid_values_are_refused(self):
        for values in (
            {"workers": {"replica": 3}},
            {"workers": {"threads": 0}},
            {"aggregators": {"replicas": "two"}},
            {"coordinator": {"args": ["listen"]}},
            {"coordinator": {"storage": "lots"}},
            {"coordinator": {"replicas": 2}},
            {"coordinator": {"replicas": 0}},
            {"coordinator": {"database": {"secret": "mine", "port": 0}}},
        ):
            with self.subTest(values), self.assertRaisesRegex(ValueError, "schema|values"):
                template(**values)

    def test_release_can_be_updated(self):
        new = template(image={"tag": "9.9.9"}, workers={"replicas": 9, "threads": 4})
        self.assertEqual(list(behaviour.check_update(template(), new)), [])


if __name__ == "__main__":
    unittest.main()
