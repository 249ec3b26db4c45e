#!/usr/bin/env python3
"""Renders the base and every overlay under deploy/kubernetes with kubectl and checks the objects.

usage: manifests_test.py REPOSITORY
"""

import copy
import pathlib
import re
import sys
import unittest

import behaviour
import custom_resources
import manifests
import manifests_rules

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
FOLDER = ROOT / "deploy/kubernetes"
RULES = manifests_rules.Rules(ROOT)
render, overlay = RULES.render, RULES.overlay
problems, behaviours = RULES.problems, RULES.behaviours


def first_container(objects, name):
    return manifests.containers(manifests.find(objects, "StatefulSet", name))[0]


# Overlays of a user: every component, another namespace, both kinds of workers.
VARIANTS = {
    "certificates": "resources: [../base, ../worker, ../worker-network]\nnamespace: cadre\n"
    "components: [../components/cert-manager]\n",
    "checkpoints": "resources: [../base, ../worker, ../worker-network]\nnamespace: cadre\n"
    "components: [../components/checkpoints, ../components/existing-store]\n",
    "standbys": "resources: [../gpu, ../worker, ../worker-network]\nnamespace: elsewhere\n"
    "components: [../components/standby-coordinators, ../components/monitoring]\n",
    "all": "resources: [../gpu, ../worker, ../worker-network]\nnamespace: elsewhere\n"
    "components: [../components/cert-manager, ../components/checkpoints, ../components/monitoring]\n",
}

JOB_SET_OVERLAY = "resources: [../examples/jobset]\n"
JOB_SET_STANDBYS = JOB_SET_OVERLAY + "namespace: cadre\ncomponents: [../components/standby-coordinators]\n"


class RepositoryTest(unittest.TestCase):
    def test_every_overlay(self):
        files = FOLDER.rglob("kustomization.yaml")
        folders = sorted(file.parent for file in files if "/.test-" not in str(file))
        self.assertEqual(
            [str(path.relative_to(FOLDER)) for path in folders],
            [
                ".",
                "base",
                "components/cert-manager",
                "components/checkpoints",
                "components/existing-store",
                "components/monitoring",
                "components/standby-coordinators",
                "examples/jobset",
                "gpu",
                "gpu/worker",
                "worker",
                "worker-network",
            ],
        )
        for name in (".", "gpu", "examples/jobset"):
            objects = render(FOLDER / name)
            self.assertEqual(problems(objects) + behaviours(objects), [], name)

    def test_every_variant(self):
        for name, text in {**VARIANTS, "standbys of a job set": JOB_SET_STANDBYS}.items():
            with self.subTest(name):
                objects = overlay(text)
                self.assertEqual(problems(objects) + behaviours(objects), [])

    def test_every_component_has_a_variant(self):
        for folder in (FOLDER / "components").iterdir():
            self.assertIn(f"../components/{folder.name}", " ".join(VARIANTS.values()))

    def test_another_namespace_changes_nothing_else(self):
        here = overlay("resources: [../base, ../worker, ../worker-network]\nnamespace: cadre\n")
        text = "resources: [../base, ../worker, ../worker-network]\nnamespace: elsewhere\n"
        for item, moved in zip(here, overlay(text), strict=True):
            if item["kind"] == "Namespace":
                item["metadata"]["name"] = "elsewhere"
            else:
                item["metadata"]["namespace"] = "elsewhere"
            self.assertEqual(item, moved)

    def test_update_to_another_release(self):
        for name in ("base", "worker", "gpu"):
            images = "[{name: cadre, newTag: 9.9.9}, {name: cadre-worker, newTag: 9.9.9}]"
            new = overlay(f"resources: [../{name}]\nimages: {images}\n")
            tags = {c["image"].partition(":")[2] for _, c in manifests.pods(new)}
            self.assertEqual(tags, {"9.9.9"})
            self.assertEqual(list(behaviour.check_update(render(FOLDER / name), new)), [])

    def test_every_file_is_rendered(self):
        for file in FOLDER.rglob("kustomization.yaml"):
            folder = file.parent
            listed = (folder / "kustomization.yaml").read_text()
            for path in folder.glob("*.yaml"):
                if path.name != "kustomization.yaml":
                    self.assertRegex(listed, rf"(- |path: ){path.name}\n")

    def test_gpu_overlay_adds_gpu_workers_only(self):
        base, gpu = render(FOLDER), render(FOLDER / "gpu")
        self.assertTrue(all(item in gpu for item in render(FOLDER / "base")))
        self.assertIsNone(manifests.find(gpu, "StatefulSet", "cadre-worker"))
        worker = first_container(gpu, "cadre-worker-gpu")
        self.assertEqual(worker["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertEqual(manifests.flags_of(worker)["device"], "cuda")
        image = first_container(base, "cadre-worker")["image"] + "-cuda"
        self.assertEqual(worker["image"], image)
        self.assertIn(f"CUDA=ON -t {image} ", (ROOT / "deploy/Dockerfile").read_text())

    def test_readme_patches_the_flag_threads(self):
        worker = first_container(render(FOLDER), "cadre-worker")
        text = (FOLDER / "README.md").read_text()
        index = int(re.search(r"args/(\d+), value: --threads=", text)[1])
        self.assertTrue(worker["args"][index].startswith("--threads="))

    def test_readme_names_the_authority_of_the_database(self):
        coordinator = first_container(overlay(VARIANTS["standbys"]), "cadre-coordinator")
        folder = re.search(r"sslrootcert=([\w/]+)/ca\.crt", (FOLDER / "README.md").read_text())[1]
        self.assertIn({"name": "database", "mountPath": folder, "readOnly": True}, coordinator["volumeMounts"])

    def test_permanent_failures_are_those_of_the_worker(self):
        codes = re.findall(r"kExit(?:Usage|Refused) = (\d+);", (ROOT / "worker/main.cc").read_text())
        self.assertEqual({int(code) for code in codes}, manifests.PERMANENT_FAILURES)


AGGREGATOR = "StatefulSet/cadre-aggregator"
COORDINATOR = "StatefulSet/cadre-coordinator"
WORKER = "StatefulSet/cadre-worker"
JOB = "Job/my-run-worker-0"
JOB_SET = "JobSet/my-run"
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
    (JOB, "spec.completionMode", "NonIndexed", "must be Indexed"),
    (JOB, "spec.completions", 3, "must be Indexed, with as many"),
    (JOB, POD + "restartPolicy", "OnFailure", "restartPolicy: Never"),
    (JOB, "spec.podFailurePolicy.rules.0", DELETE, "must ignore DisruptionTarget"),
    (JOB, "spec.podFailurePolicy.rules.1", DELETE, "must fail on the exit codes"),
    (JOB, "spec.podFailurePolicy.rules.1.onExitCodes.containerName", "x", "must fail on the exit codes"),
    ("Service/cadre-coordinator", "spec.selector", {"app": "x"}, "selects no pod"),
    ("Service/cadre-coordinator", "spec.ports.0.targetPort", "grcp", "targetPort grcp does not"),
    (AGGREGATOR, MAIN + "args.0", "--listen=[::]:7005", "listens on 7005"),
    (COORDINATOR, MAIN + "ports.1.containerPort", 7105, "--health-port is not the port health"),
    (WORKER, MAIN + "args.+", "--insecure", "cadre-worker must use --tls"),
    (WORKER, MAIN + "args.+", "--tls=", "cadre-worker must use --tls"),
    (WORKER, MAIN + "volumeMounts.1.subPath", "tls.crt", "not a read-only mount of a whole volume"),
    (COORDINATOR, MAIN + "readinessProbe.grpc.port", 7001, "readinessProbe does not query"),
    (COORDINATOR, MAIN + "livenessProbe", DELETE, "livenessProbe does not query"),
    (AGGREGATOR, MAIN + "args.+", "--coordinator=cadre-cordinator:7000", "no such Service"),
    (AGGREGATOR, MAIN + "args.+", "--coordinator=cadre-coordinator-headless", "no such Service"),
    (AGGREGATOR, MAIN + "args.+", "--coordinator=cadre-coordinator-headless:9", "no such port"),
    (WORKER, MAIN + "args.+", "--advertise=$(POD_NAME).cadre-aggregator:7001", "not name"),
    (WORKER, MAIN + "args.+", "--name=$(POD_NAM)", "undefined variable POD_NAM"),
    (WORKER, MAIN + "args.+", "--thread=2", "cadre-worker has no flag --thread"),
    (WORKER, MAIN + "command", ["cadre-wroker"], "cadre-wroker has no flag"),
    (WORKER, POD + "terminationGracePeriodSeconds", RULES.drain_seconds, "draining takes"),
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
    ("NetworkPolicy/aggregator-worker", "spec.ingress.0", DELETE, "to aggregator:7001 is missing"),
    ("NetworkPolicy/aggregator-worker", "spec.ingress.0.ports.0.port", 7000, "aggregator:7000 is not needed"),
    ("NetworkPolicy/coordinator", "spec.ingress.0.from", [{"podSelector": {}}], "is not needed"),
    ("NetworkPolicy/worker", "spec.policyTypes", ["Ingress"], "egress from worker to worker:7002 is m"),
    ("NetworkPolicy/worker-gpu", "spec.ingress.0.ports.1", DELETE, "worker-gpu:32768 is missing"),
    (WORKER, MAIN + "ports.+", {"name": "m", "containerPort": 9}, "worker:9 is not both"),
]


# As MUTATIONS, for the schemas of custom resources.
CERTIFICATE = "Certificate/cadre-worker-tls"
MONITOR = "PodMonitor/cadre-worker"
CUSTOM = [
    (CERTIFICATE, "spec.secretNam", "x", "'secretNam' was unexpected"),
    (CERTIFICATE, "spec.secretName", DELETE, "'secretName' is a required property"),
    (CERTIFICATE, "spec.duration", 2160, "2160 is not of type 'string'"),
    (CERTIFICATE, "spec.usages.0", "digital signatures", "'digital signatures' is not one of"),
    (CERTIFICATE, "spec.privateKey.rotationPolicy", "Sometimes", "'Sometimes' is not one of"),
    (CERTIFICATE, "apiVersion", "cert-manager.io/v1alpha2", "no cert-manager.io/v1alpha2 Certificate"),
    ("Issuer/cadre-ca", "spec.ca.secretName", DELETE, "'secretName' is a required property"),
    ("Issuer/cadre-self-signed", "kind", "Isuer", "no cert-manager.io/v1 Isuer"),
    (MONITOR, "spec.podMetricsEndpoints.0.path", 9470, "9470 is not of type 'string'"),
    (MONITOR, "spec.podMetricsEndpoints.0.interval", "15 s", "'15 s' does not match"),
    (MONITOR, "spec.podMetricsEndpoints.0.relabelings.0.target", "job", "'target' was unexpected"),
    (MONITOR, "spec.selector", DELETE, "'selector' is a required property"),
    (MONITOR, "metadata.label", {}, "'label' was unexpected"),
    ("PrometheusRule/cadre", "spec.groups.0.rules.0.for", "soon", "'soon' does not match"),
    ("PrometheusRule/cadre", "spec.groups.0.rules.0.expr", DELETE, "'expr' is a required property"),
    ("PrometheusRule/cadre", "spec.groups.0.rules.0.annotations.runbook", 1, "1 is not of type 'string'"),
    (JOB_SET, "spec.network.enableDNSHostname", True, "'enableDNSHostname' was unexpected"),
    (JOB_SET, "spec.failurePolicy.maxRestarts", "0", "'0' is not of type 'integer'"),
    (JOB_SET, "spec.replicatedJobs.0.name", DELETE, "'name' is a required property"),
    (JOB_SET, "spec.replicatedJobs.0.template.spec.completion", 4, "'completion' was unexpected"),
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


# As MUTATIONS, for the rules in behaviour.py: mistakes that only a running cluster would show.
COORDINATOR_SERVICE = "Service/cadre-coordinator-headless"
GPU_WORKER = "StatefulSet/cadre-worker-gpu"
AGGREGATOR_CERTIFICATE = "Certificate/cadre-aggregator-1-tls"
BEHAVIOURS = [
    (JOB, MAIN + "args.6", DELETE, "a Job needs --exit-when-done"),
    (JOB, "spec.podFailurePolicy.rules.1.onExitCodes.values", [2, 64, 143], "drained does not return"),
    (JOB, "spec.backoffLimit", 0, "a worker that was drained does not return"),
    (JOB_SET, "metadata.name", "other", "--advertise is not the name that JobSet gives the pod"),
    (JOB_SET, "spec.network.enableDNSHostnames", False, "its pods have no names"),
    (JOB_SET, "spec.network.publishNotReadyAddresses", False, "leases expire before"),
    (JOB_SET, "spec.failurePolicy.maxRestarts", 3, "starts a failed run again"),
    (WORKER, MAIN + "args.+", "--exit-when-done", "its pods start again after the run"),
    (WORKER, "spec.podManagementPolicy", "OrderedReady", "must start in parallel"),
    (WORKER, "spec.updateStrategy", {"type": "OnDelete"}, "without manual deletion"),
    (WORKER, MAIN + "args.+", "--drain-timeout=150", "longer than the grace period"),
    (WORKER, MAIN + "command", ["sh", "-c", "cadre-worker"], "does not pass on SIGTERM"),
    (WORKER, MAIN + "lifecycle", {"preStop": {"sleep": {"seconds": 5}}}, "delays SIGTERM"),
    (WORKER, MAIN + "livenessProbe", {"tcpSocket": {"port": 7002}}, "a probe would end a worker"),
    (WORKER, MAIN + "args.3", "--advertise=$(POD_IP):7002", "lacks its brackets"),
    (WORKER, MAIN + "args.0", "--coordinator=cadre-coordinator.cadre.svc:7000", "names a namespace"),
    (AGGREGATOR, MAIN + "args.0", "--listen=0.0.0.0:7001", "must accept IPv4 and IPv6"),
    (AGGREGATOR, "spec.replicas", 3, "one Secret for each replica"),
    (AGGREGATOR, MAIN + "volumeMounts.3.mountPath", "/other", "is not a volume that many nodes"),
    (AGGREGATOR, MAIN + "args.9", DELETE, "do not mount the same checkpoints"),
    (COORDINATOR_SERVICE, "spec.publishNotReadyAddresses", DELETE, "leases expire before"),
    (COORDINATOR_SERVICE, "spec.ipFamilyPolicy", DELETE, "needs ipFamilyPolicy"),
    (COORDINATOR_SERVICE, "metadata.namespace", "cadre", "objects are in"),
    ("PodDisruptionBudget/cadre-worker", "spec.minAvailable", 3, "follows the number"),
    ("PodDisruptionBudget/cadre-worker", "spec.unhealthyPodEvictionPolicy", DELETE, "must not block"),
    (AGGREGATOR, MAIN + "readinessProbe.grpc.service", DELETE, "must ask for the service readiness"),
    ("PersistentVolumeClaim/cadre-checkpoints", "spec.accessModes", ["ReadWriteOnce"], "not a volume that many"),
    (AGGREGATOR_CERTIFICATE, "spec.secretName", "other", "no Certificate issues"),
    (AGGREGATOR_CERTIFICATE, "spec.uris", ["spiffe://cadre/cadre/aggregator/a"], "is not that of the pod"),
    (AGGREGATOR_CERTIFICATE, "spec.usages", ["client auth"], "is not an identity"),
    (GPU_WORKER, MAIN + "ports.1.name", "metric", "no pod has the port metrics"),
    ("PodMonitor/cadre-worker", "spec.podMetricsEndpoints.0.port", "http", "no pod has the port http"),
    ("PodMonitor/cadre-coordinator", "spec.selector.matchLabels", {"a": "b"}, "selects no pod"),
    ("PrometheusRule/cadre", "spec.groups.0.rules.0.for", "9m", "differs from deploy/monitoring/alerts.yaml"),
    ("NetworkPolicy/metrics", "spec.ingress.0.ports.0.port", 9471, "Prometheus cannot reach"),
    (GPU_WORKER, MAIN + "resources.limits", {}, "needs a GPU"),
    (GPU_WORKER, MAIN + "volumeMounts.2", DELETE, "more shared memory"),
]


# As the two lists above, for coordinators that share a database.
STANDBYS_POLICY = "NetworkPolicy/coordinator-database"
HEADLESS = "cadre-coordinator-headless:7000"
STANDBYS = [
    (COORDINATOR, MAIN + "args.1", "--fromenv=stor", "has no flag --stor, which --fromenv names"),
    (COORDINATOR, MAIN + "args.1", "--fromenv=store,lease_ms", "needs the variable FLAGS_lease_ms"),
    (COORDINATOR, MAIN + "args.+", "--store=postgresql://cadre:secret@db/cadre", "must not be an argument"),
    (COORDINATOR, MAIN + "args.1", "--store=/tmp/coordinator.db", "with a store of its own"),
    (COORDINATOR, MAIN + "args.2", f"--advertise={HEADLESS}", "--advertise is not the name of the pod"),
    (COORDINATOR, MAIN + "env.1", {"name": "FLAGS_store", "value": "postgresql://db"}, "must come from a Secret"),
    (COORDINATOR, MAIN + "readinessProbe.grpc.service", DELETE, "must ask for the service readiness"),
    (COORDINATOR, MAIN + "readinessProbe.grpc.service", "ready", "must ask for the service readiness"),
    (COORDINATOR, MAIN + "livenessProbe.grpc.service", "readiness", "would end a process that waits"),
    (COORDINATOR, POD + "topologySpreadConstraints.0", DELETE, "one node may have all coordinators"),
    (COORDINATOR, "spec.podManagementPolicy", "OrderedReady", "must start in parallel"),
    (COORDINATOR, "spec.volumeClaimTemplates", [{"metadata": {"name": "store"}, "spec": {}}], "needs no volume"),
    (COORDINATOR, "spec.replicas", 3, "cadre-aggregator: --coordinator must be"),
    (COORDINATOR, "spec.replicas", 1, "there is no pod cadre-coordinator-1"),
    (AGGREGATOR, MAIN + "args.2", f"--coordinator={HEADLESS}", "--coordinator must be cadre-coordinator-0."),
    (AGGREGATOR, MAIN + "args.2", f"--coordinator=cadre-worker-0.{HEADLESS}", "does not name its pods"),
    (AGGREGATOR, MAIN + "args.2", f"--coordinator=a-0.{HEADLESS}", "there is no pod a-0"),
    (STANDBYS_POLICY, "spec.egress", [], "no network policy allows connections to the database"),
    (STANDBYS_POLICY, "spec.egress.0", {}, "a rule for egress allows all peers"),
    (STANDBYS_POLICY, "spec.podSelector.matchLabels", {"app.kubernetes.io/name": "cadre"}, "allows all peers"),
    ("NetworkPolicy/coordinator", "spec.ingress.0.from", DELETE, "a rule for ingress allows all peers"),
    (COORDINATOR_SERVICE, "spec.clusterIP", DELETE, "leads to standbys"),
]


class MutationTest(unittest.TestCase):
    """Each mutation breaks one rule in rendered objects; the checks must report it."""

    def expect_reports(self, mutations, check, *texts):
        """`texts`: overlays without problems; a mutation is of the first one that has its object."""
        rendered = [manifests.with_jobs(overlay(text)) for text in texts]
        for objects in rendered:
            self.assertEqual(check(objects), [])
        for name, path, value, text in mutations:
            with self.subTest(name=name, path=path, value=value):
                found = next(objects for objects in rendered if manifests.find(objects, *name.split("/")))
                objects = copy.deepcopy(found)
                mutate(manifests.find(objects, *name.split("/")), path, value)
                self.assertIn(text, "\n".join(check(objects)))

    def test_each_mutation_is_reported(self):
        gpu = "resources: [../gpu, ../worker, ../worker-network]\nnamespace: cadre\n"
        self.expect_reports(MUTATIONS, RULES.problems_of_newest_api, gpu, JOB_SET_OVERLAY)

    def test_each_mutation_of_a_custom_resource_is_reported(self):
        rendered = overlay(VARIANTS["all"]) + overlay(JOB_SET_OVERLAY)
        of_others = {i["kind"] for i in rendered if i["apiVersion"] in custom_resources.SOURCES}
        self.assertEqual(of_others, {name.partition("/")[0] for name, *_ in CUSTOM})
        self.expect_reports(CUSTOM, RULES.problems_of_newest_api, VARIANTS["all"], JOB_SET_OVERLAY)

    def test_each_behaviour_is_reported(self):
        self.assertGreaterEqual(len({text for *_, text in BEHAVIOURS}), 15)
        self.expect_reports(BEHAVIOURS, behaviours, VARIANTS["all"], JOB_SET_OVERLAY)

    def test_each_mistake_with_standbys_is_reported(self):
        def check(objects):
            return RULES.problems_of_newest_api(objects) + behaviours(objects)

        self.expect_reports(STANDBYS, check, VARIANTS["standbys"])

    def test_standbys_need_a_new_stateful_set(self):
        text = "resources: [../base, ../worker, ../worker-network]\nnamespace: cadre\n"
        new = overlay(text + "components: [../components/standby-coordinators]\n")
        problems = list(behaviour.check_update(overlay(text), new))
        fields = ("podManagementPolicy", "volumeClaimTemplates")
        self.assertEqual(problems, [f"{COORDINATOR}: {field} is immutable" for field in fields])

    def test_job_loses_workers_that_end_without_error(self):
        job = manifests.find(manifests.with_jobs(render(FOLDER / "examples/jobset")), *JOB.split("/"))
        self.assertFalse(behaviour.returns(job, 0, evicted=True))
        self.assertTrue(behaviour.returns(job, 143, evicted=True))
        self.assertFalse(behaviour.returns(job, 64, evicted=False))

    def test_immutable_fields_are_reported(self):
        old = render(FOLDER) + manifests.with_jobs(render(FOLDER / "examples/jobset"))
        for name, path in (
            (WORKER, "spec.selector.matchLabels.version"),
            (WORKER, "spec.podManagementPolicy"),
            (AGGREGATOR, "spec.volumeClaimTemplates"),
            (JOB, MAIN + "image"),
        ):
            with self.subTest(name=name, path=path):
                new = copy.deepcopy(old)
                mutate(manifests.find(new, *name.split("/")), path, "other")
                field = path.split(".")[1]
                self.assertIn(f"{name}: {field} is immutable", list(behaviour.check_update(old, new)))

    def test_missing_file_is_reported(self):
        with self.assertRaisesRegex(ValueError, "kustomization"):
            render(ROOT / "tests")


if __name__ == "__main__":
    unittest.main()
