#!/usr/bin/env python3
"""Renders the base and every overlay under deploy/kubernetes with kubectl and checks the objects.

usage: manifests_test.py REPOSITORY
"""

import copy
import pathlib
import re
import sys
import unittest

import manifests
import programs
import tools

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
FOLDER = ROOT / "deploy/kubernetes"
FLAGS = programs.flags(ROOT)
DRAIN_SECONDS = programs.drain_seconds(ROOT)


def render(folder):
    return manifests.render(tools.find("bin/kubectl"), folder)


def problems(objects):
    schemas = tools.find("kubernetes_validate/kubernetes-json-schema")
    return manifests.check(objects, schemas, FLAGS, DRAIN_SECONDS)


def first_container(objects, name):
    return manifests.containers(manifests.find(objects, "Job", name))[0]


class RepositoryTest(unittest.TestCase):
    def test_base_and_every_overlay(self):
        folders = sorted(path.parent for path in FOLDER.rglob("kustomization.yaml"))
        self.assertEqual(
            [str(path.relative_to(FOLDER)) for path in folders],
            [".", "base", "gpu", "gpu/worker", "worker"],
        )
        for folder in folders[:3]:
            self.assertEqual(problems(render(folder)), [], folder.name)

    def test_every_file_is_rendered(self):
        for folder in (FOLDER / "base", FOLDER / "gpu", FOLDER / "worker"):
            listed = (folder / "kustomization.yaml").read_text()
            for path in folder.glob("*.yaml"):
                if path.name != "kustomization.yaml":
                    self.assertIn(f"- {path.name}\n", listed)

    def test_gpu_overlay_adds_to_the_base(self):
        base, gpu = render(FOLDER), render(FOLDER / "gpu")
        self.assertTrue(all(item in gpu for item in base))
        worker = first_container(gpu, "cadre-worker-gpu")
        self.assertEqual(worker["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertEqual(manifests.flags_of(worker)["device"], "cuda")
        self.assertIn("NCCL_LAUNCH_ORDER_IMPLICIT", [variable["name"] for variable in worker["env"]])
        image = first_container(base, "cadre-worker")["image"] + "-cuda"
        self.assertEqual(worker["image"], image)
        self.assertIn(f"CUDA=ON -t {image} ", (ROOT / "deploy/Dockerfile").read_text())

    def test_readme_patches_the_flag_threads(self):
        worker = first_container(render(FOLDER), "cadre-worker")
        text = (FOLDER / "README.md").read_text()
        index = int(re.search(r"args/(\d+), value: --threads=", text)[1])
        self.assertTrue(worker["args"][index].startswith("--threads="))

    def test_permanent_failures_are_those_of_the_worker(self):
        codes = re.findall(r"kExit(?:Usage|Refused) = (\d+);", (ROOT / "worker/main.cc").read_text())
        self.assertEqual({int(code) for code in codes}, manifests.PERMANENT_FAILURES)


AGGREGATOR = "StatefulSet/cadre-aggregator"
COORDINATOR = "StatefulSet/cadre-coordinator"
WORKER = "Job/cadre-worker"
GPU_WORKER = "Job/cadre-worker-gpu"
DELETE = object()

# Object, path in it (`+` appends to a list), new value, text of the problem that must be reported.
POD = "spec.template.spec."
MAIN = POD + "containers.0."
MUTATIONS = [
    (COORDINATOR, "spec.replica", 1, "'replica' was unexpected"),
    ("NetworkPolicy/worker", "spec.egres", [], "'egres' was unexpected"),
    (AGGREGATOR, MAIN + "livenessProbe.grpc.prot", 1, "'prot' was unexpected"),
    (COORDINATOR, "spec.selector", DELETE, "'selector' is a required property"),
    ("PodDisruptionBudget/cadre-worker", "apiVersion", "policy/v1beta9", "no policy/v1beta9"),
    ("Namespace/cadre", "metadata.labels", {}, "the namespace needs the label"),
    (WORKER, MAIN + "image", "cadre", "needs a tag"),
    (AGGREGATOR, "spec.selector.matchLabels", {"a": "b"}, "does not select its own pods"),
    (COORDINATOR, "spec.serviceName", "cadre-coordinator", "is not a headless Service"),
    (COORDINATOR, "spec.serviceName", "cadre-aggregator", "aggregator does not select its pods"),
    ("PodDisruptionBudget/cadre-worker", "spec.selector.matchLabels", {"a": "b"}, "exactly one"),
    ("PodDisruptionBudget/cadre-worker", "spec.selector.matchLabels", {"a": "b"}, "has no PodD"),
    (WORKER, "spec.completionMode", "NonIndexed", "must be Indexed"),
    (WORKER, "spec.completions", 3, "must be Indexed, with as many"),
    (WORKER, POD + "restartPolicy", "OnFailure", "restartPolicy: Never"),
    (WORKER, "spec.podFailurePolicy.rules.0", DELETE, "must ignore DisruptionTarget"),
    (WORKER, "spec.podFailurePolicy.rules.1", DELETE, "must fail on the exit codes"),
    (WORKER, "spec.podFailurePolicy.rules.1.onExitCodes.containerName", "x", "must fail on the exit codes"),
    ("PodDisruptionBudget/cadre-worker", "spec.minAvailable", 4, "must be below"),
    ("PodDisruptionBudget/cadre-worker", "spec.minAvailable", "50%", "must be below"),
    ("Service/cadre-coordinator", "spec.selector", {"app": "x"}, "selects no pod"),
    ("Service/cadre-coordinator", "spec.ports.0.targetPort", "grcp", "targetPort grcp does not"),
    (AGGREGATOR, MAIN + "args.0", "--listen=0.0.0.0:7005", "listens on 7005"),
    (COORDINATOR, MAIN + "ports.1.containerPort", 7105, "--health-port is not the port health"),
    (WORKER, MAIN + "args.+", "--insecure", "cadre-worker must use --tls"),
    (WORKER, MAIN + "args.+", "--tls=", "cadre-worker must use --tls"),
    (WORKER, MAIN + "volumeMounts.1.subPath", "tls.crt", "not a read-only mount of a whole volume"),
    (COORDINATOR, MAIN + "readinessProbe.grpc.port", 7001, "readinessProbe does not query"),
    (COORDINATOR, MAIN + "livenessProbe", DELETE, "livenessProbe does not query"),
    (AGGREGATOR, MAIN + "args.+", "--coordinator=cadre-coordinator.a.svc:7000", "no such Service"),
    (AGGREGATOR, MAIN + "args.+", "--coordinator=cadre-coordinator.cadre.svc", "no such Service"),
    (AGGREGATOR, MAIN + "args.+", "--coordinator=cadre-coordinator.cadre.svc:9", "no such port"),
    (WORKER, MAIN + "args.+", "--advertise=$(POD_NAME).cadre-aggregator.cadre.svc:7001", "not name"),
    (WORKER, MAIN + "args.+", "--name=$(POD_NAM)", "undefined variable POD_NAM"),
    (WORKER, MAIN + "args.+", "--thread=2", "cadre-worker has no flag --thread"),
    (WORKER, MAIN + "command", ["cadre-wroker"], "cadre-wroker has no flag"),
    (WORKER, POD + "terminationGracePeriodSeconds", DRAIN_SECONDS, "draining takes"),
    (AGGREGATOR, MAIN + "volumeMounts.0.mountPath", "/data", "/var/lib/cadre is not on a"),
    (WORKER, MAIN + "volumeMounts", DELETE, "/tmp is not on a writable volume"),
    (WORKER, MAIN + "resources.limits.memory", DELETE, "a request and a limit of memory"),
    (WORKER, MAIN + "args.+", "--threads=3", "more threads than"),
    ("ServiceAccount/cadre-worker", "automountServiceAccountToken", True, "must be false"),
    (WORKER, POD + "serviceAccountName", "default", "needs a ServiceAccount"),
    (WORKER, POD + "automountServiceAccountToken", True, "automountServiceAccountToken: false"),
    (WORKER, POD + "hostNetwork", True, "no host namespaces"),
    (WORKER, POD + "volumes.+", {"name": "h", "hostPath": {"path": "/"}}, "only volumes"),
    (WORKER, POD + "securityContext.runAsNonRoot", False, "context of pods"),
    (WORKER, MAIN + "securityContext.capabilities.add", ["SYS_ADMIN"], "context of containers"),
    (WORKER, MAIN + "ports.0.hostPort", 1, "no hostPort"),
    ("NetworkPolicy/default-deny", "spec.policyTypes", ["Ingress"], "denies by default"),
    ("NetworkPolicy/allow-dns", "metadata.name", "dns", "no policy allows DNS"),
    ("NetworkPolicy/control", "spec.podSelector.matchLabels", {"a": "b"}, "selects no pod"),
    ("NetworkPolicy/worker", "spec.egress.0", DELETE, "egress from worker to coordinator:7000 is m"),
    ("NetworkPolicy/aggregator", "spec.ingress.0", DELETE, "to aggregator:7001 is missing"),
    ("NetworkPolicy/aggregator", "spec.ingress.0.ports.0.port", 7000, "aggregator:7000 is not needed"),
    ("NetworkPolicy/coordinator", "spec.ingress.0.from", [{"podSelector": {}}], "is not needed"),
    ("NetworkPolicy/worker", "spec.policyTypes", ["Ingress"], "egress from worker to worker:7002 is m"),
    ("NetworkPolicy/worker-gpu", "spec.ingress.0.ports.1", DELETE, "worker-gpu:32768 is missing"),
    (WORKER, MAIN + "ports.+", {"name": "m", "containerPort": 9}, "worker:9 is not both"),
]


def mutate(item, path, value):
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        item = item[part]
    if last == "+":
        item.append(value)
    elif value is DELETE:
        del item[last]
    else:
        item[last] = value


class MutationTest(unittest.TestCase):
    """Each mutation breaks one rule in the rendered GPU overlay; the checks must report it."""

    def test_each_mutation_is_reported(self):
        rendered = render(FOLDER / "gpu")
        for name, path, value, text in MUTATIONS:
            with self.subTest(name=name, path=path, value=value):
                objects = copy.deepcopy(rendered)
                mutate(manifests.find(objects, *name.split("/")), path, value)
                self.assertIn(text, "\n".join(problems(objects)))

    def test_missing_file_is_reported(self):
        with self.assertRaisesRegex(ValueError, "kustomization"):
            render(ROOT / "tests")


if __name__ == "__main__":
    unittest.main()
