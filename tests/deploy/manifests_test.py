#!/usr/bin/env python3
"""The manifests under deploy/kubernetes are sound; and the checks notice when they are not.

usage: manifests_test.py REPOSITORY
"""

import copy
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock

import yaml

import manifests
import programs

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
FOLDER = ROOT / "deploy/kubernetes"
SOUND = manifests.load(FOLDER)
DRAIN_SECONDS = programs.drain_seconds(ROOT)


class RepositoryTest(unittest.TestCase):
    def test_manifests_are_sound(self):
        self.assertGreaterEqual(len(SOUND.resources), 15)
        self.assertEqual(manifests.check(SOUND, programs.flags(ROOT), DRAIN_SECONDS), [])

    def test_the_readme_patches_the_argument_that_it_means(self):
        worker = manifests.containers(SOUND.find("Job", "cadre-worker"))[0]
        text = (FOLDER / "README.md").read_text()
        index = int(re.search(r"args/(\d+), value: --threads=", text)[1])
        self.assertTrue(worker["args"][index].startswith("--threads="))

    def test_every_program_is_in_the_list(self):
        self.assertEqual(programs.programs(ROOT), set(programs.HOUSES))

    def test_exit_codes_that_fail_the_job_are_the_worker_s(self):
        codes = re.findall(r"kExit(?:Usage|Refused) = (\d+);", (ROOT / "worker/main.cc").read_text())
        self.assertEqual({int(code) for code in codes}, manifests.PERMANENT_FAILURES)

    def test_every_workload_is_there(self):
        found = {(w.kind, manifests.component(w)) for w in SOUND.workloads()}
        self.assertEqual(
            found, {("StatefulSet", "coordinator"), ("StatefulSet", "aggregator"), ("Job", "worker")}
        )


class GpuOverlayTest(unittest.TestCase):
    """The base with workers on GPUs beside it."""

    def setUp(self):
        self.bundle = manifests.load_overlay(FOLDER / "gpu")
        edges = unittest.mock.patch.object(
            manifests, "EDGES", manifests.EDGES | manifests.GPU_EDGES
        )
        edges.start()
        self.addCleanup(edges.stop)

    def problems(self):
        return manifests.check(self.bundle, programs.flags(ROOT), DRAIN_SECONDS)

    def test_it_is_sound(self):
        self.assertEqual(self.problems(), [])

    def test_each_worker_has_one_gpu_and_says_so(self):
        worker = manifests.containers(self.bundle.find("Job", "cadre-worker-gpu"))[0]
        self.assertEqual(worker["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertEqual(manifests.flags_of(worker)["device"], "cuda")

    def test_the_image_is_the_one_with_cuda(self):
        images = {image["name"]: image["newTag"] for image in self.bundle.kustomization["images"]}
        self.assertEqual(images["cadre-cuda"], images["cadre"] + "-cuda")
        text = (ROOT / "deploy/Dockerfile").read_text()
        self.assertIn(f"--build-arg CUDA=ON -t cadre:{images['cadre-cuda']} ", text)

    def test_nccl_without_its_ports_is_noticed(self):
        policy = self.bundle.find("NetworkPolicy", "worker-gpu")
        policy.spec["ingress"][0]["ports"].pop()
        self.assertIn(
            "network: no ingress from worker-gpu to worker-gpu:32768", "\n".join(self.problems())
        )

    def test_an_aggregator_that_shuts_them_out_is_noticed(self):
        self.bundle.resources.remove(self.bundle.find("NetworkPolicy", "aggregator-gpu"))
        self.assertIn(
            "network: no ingress from worker-gpu to aggregator:7001", "\n".join(self.problems())
        )


class BrokenTest(unittest.TestCase):
    """Each test breaks a copy of the real manifests in one place and expects that to be named."""

    def setUp(self):
        self.bundle = copy.deepcopy(SOUND)
        self.flags = {
            program: {flag for w in self.bundle.workloads() for c in manifests.containers(w)
                      for flag in manifests.flags_of(c)}
            for program in programs.HOUSES
        }  # fmt: skip
        self.assertEqual(self.problems(), [])

    def problems(self):
        return manifests.check(self.bundle, self.flags, DRAIN_SECONDS)

    def resource(self, kind, name):
        return self.bundle.find(kind, name).body

    def pod(self, kind, name):
        return self.resource(kind, name)["spec"]["template"]["spec"]

    def container(self, kind, name):
        return self.pod(kind, name)["containers"][0]

    def assertNames(self, *words):
        found = self.problems()
        self.assertTrue(
            any(all(word in line for word in words) for line in found), f"{words} not in {found}"
        )

    def test_misspelt_field(self):
        for kind, name, field in (
            ("StatefulSet", "cadre-coordinator", "replica"),
            ("Job", "cadre-worker", "paralelism"),
            ("NetworkPolicy", "worker", "egres"),
            ("Service", "cadre-aggregator", "publishNotReadyAdresses"),
        ):
            with self.subTest(kind):
                self.setUp()
                self.resource(kind, name)["spec"][field] = 1
                self.assertNames(f"{kind}/{name}", field)

    def test_misspelt_field_deep_inside_a_container(self):
        self.container("StatefulSet", "cadre-aggregator")["livenessProbe"]["grpc"]["prot"] = 1
        self.assertNames("aggregator.yaml", "livenessProbe.grpc", "prot")

    def test_wrong_type(self):
        self.resource("StatefulSet", "cadre-aggregator")["spec"]["replicas"] = "two"
        self.assertNames("at spec.replicas", "two")

    def test_unquoted_true_where_a_string_belongs(self):
        job = self.resource("Job", "cadre-worker")
        job["spec"]["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"] = True
        self.assertNames("podFailurePolicy.rules.0.onPodConditions.0.status")

    def test_missing_required_field(self):
        del self.resource("StatefulSet", "cadre-coordinator")["spec"]["selector"]
        self.assertNames("selector", "required")

    def test_old_api(self):
        self.resource("PodDisruptionBudget", "cadre-worker")["apiVersion"] = "policy/v1beta1"
        self.assertNames("no policy/v1beta1 PodDisruptionBudget")

    def test_key_given_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "kustomization.yaml").write_text("resources: [a.yaml]\n")
            (path / "a.yaml").write_text("kind: Job\nspec:\n  a: 1\n  a: 2\n")
            with self.assertRaisesRegex(yaml.YAMLError, "'a' is given twice"):
                manifests.load(path)

    def test_file_that_is_not_listed(self):
        self.bundle.kustomization["resources"].remove("worker.yaml")
        self.assertNames("worker.yaml is not listed")

    def test_listed_file_that_is_not_there(self):
        self.bundle.kustomization["resources"].append("gone.yaml")
        self.assertNames("gone.yaml is listed but not there")

    def test_tag_latest_or_none(self):
        for tag in ("latest", ""):
            self.bundle.kustomization["images"][0]["newTag"] = tag
            self.assertNames("image cadre needs a tag")

    def test_image_that_kustomize_does_not_set(self):
        self.container("Job", "cadre-worker")["image"] = "other:1"
        self.assertNames("Job/cadre-worker", "image other:1")

    def test_namespace_without_restricted(self):
        self.resource("Namespace", "cadre")["metadata"]["labels"].pop(manifests.RESTRICTED)
        self.assertNames("Namespace/cadre", "restricted")

    def test_two_of_a_name(self):
        self.bundle.resources.append(self.bundle.find("Service", "cadre-coordinator"))
        self.assertNames("Service/cadre-coordinator", "two of them")

    def test_selector_that_misses_its_own_pods(self):
        labels = self.resource("StatefulSet", "cadre-aggregator")["spec"]["template"]["metadata"]
        labels["labels"][manifests.COMPONENT] = "agregator"
        self.assertNames("StatefulSet/cadre-aggregator", "misses its own pods")

    def test_service_that_selects_nothing(self):
        self.resource("Service", "cadre-coordinator")["spec"]["selector"] = {"app": "cadre"}
        self.assertNames("Service/cadre-coordinator", "selects no pod")

    def test_budget_that_selects_nothing(self):
        budget = self.resource("PodDisruptionBudget", "cadre-aggregator")
        budget["spec"]["selector"]["matchLabels"] = {"app": "x"}
        self.assertNames("PodDisruptionBudget/cadre-aggregator", "exactly one workload")
        self.assertNames("StatefulSet/cadre-aggregator", "no PodDisruptionBudget")

    def test_service_name_of_a_stateful_set(self):
        self.resource("StatefulSet", "cadre-coordinator")["spec"]["serviceName"] = "cadre"
        self.assertNames("names no Service")
        self.resource("StatefulSet", "cadre-coordinator")["spec"]["serviceName"] = (
            "cadre-coordinator"
        )
        self.assertNames("Service cadre-coordinator is not headless")
        self.resource("StatefulSet", "cadre-coordinator")["spec"]["serviceName"] = (
            "cadre-aggregator"
        )
        self.assertNames("Service cadre-aggregator does not select its pods")

    def test_job_policies(self):
        for change, word in (
            (lambda s: s.update(completionMode="NonIndexed"), "Indexed"),
            (lambda s: s.update(completions=3), "completions and parallelism"),
            (lambda s: s["template"]["spec"].update(restartPolicy="OnFailure"), "Never"),
            (lambda s: s["podFailurePolicy"]["rules"].pop(0), "DisruptionTarget"),
            (lambda s: s["podFailurePolicy"]["rules"].pop(1), "exit code 64"),
            (lambda s: s["podFailurePolicy"]["rules"][1]["onExitCodes"].update(containerName="x"),
             "no container: x"),
            (lambda s: s.update(parallelism=3, completions=3), "below its parallelism"),
        ):  # fmt: skip
            with self.subTest(word):
                self.setUp()
                change(self.resource("Job", "cadre-worker")["spec"])
                self.assertNames(word)

    def test_service_port_that_no_container_has(self):
        self.resource("Service", "cadre-coordinator")["spec"]["ports"][0]["targetPort"] = "grcp"
        self.assertNames("targetPort grcp")

    def test_listening_on_a_port_that_is_not_declared(self):
        self.container("StatefulSet", "cadre-aggregator")["args"][0] = "--listen=0.0.0.0:7005"
        self.assertNames("listens on 7005")

    def test_probes(self):
        container = self.container("StatefulSet", "cadre-coordinator")
        container["readinessProbe"]["grpc"]["port"] = 7001
        self.assertNames("readinessProbe does not ask its gRPC port")
        del container["livenessProbe"]
        self.assertNames("has no livenessProbe")

    def test_address_that_leads_nowhere(self):
        for argument, word in (
            ("--coordinator=coordinator.cadre.svc:7000", "no such Service"),
            ("--coordinator=cadre-coordinator.other.svc:7000", "no such Service"),
            ("--coordinator=cadre-coordinator.cadre.svc:7009", "no such port"),
            ("--coordinator=cadre-coordinator.cadre.svc", "not SERVICE.NAMESPACE.svc:PORT"),
            ("--advertise=$(POD_NAME).cadre-coordinator.cadre.svc:7000", "have no name in that"),
            ("--name=$(POD_NAM)", "no variable POD_NAM"),
        ):
            with self.subTest(argument):
                self.setUp()
                self.container("StatefulSet", "cadre-aggregator")["args"].append(argument)
                self.assertNames("StatefulSet/cadre-aggregator", word)

    def test_flag_that_the_program_lacks(self):
        self.container("Job", "cadre-worker")["args"].append("--thread=2")
        self.assertNames("cadre-worker has no flag --thread")

    def test_program_that_is_none(self):
        self.container("Job", "cadre-worker")["command"] = ["cadre-wroker"]
        self.assertNames("cadre-wroker, which is no program")

    def test_volumes(self):
        mounts = self.container("StatefulSet", "cadre-coordinator")["volumeMounts"]
        mounts[0]["name"] = "stor"
        self.assertNames("mounts stor")
        self.assertNames("volume store is mounted nowhere")

    def test_references_to_nothing(self):
        for source in (
            {"configMap": {"name": "x"}},
            {"secret": {"secretName": "x"}},
            {"persistentVolumeClaim": {"claimName": "x"}},
        ):
            with self.subTest(source):
                self.setUp()
                self.pod("Job", "cadre-worker")["volumes"].append({"name": "x", **source})
                mount = {"name": "x", "mountPath": "/x"}
                self.container("Job", "cadre-worker")["volumeMounts"].append(mount)
                self.assertNames("volume x: no")

    def test_state_on_the_read_only_root(self):
        self.container("StatefulSet", "cadre-aggregator")["volumeMounts"][0]["mountPath"] = "/data"
        self.assertNames("--data_dir=/var/lib/cadre is not on a writable volume")

    def test_service_accounts(self):
        self.resource("ServiceAccount", "cadre-worker")["automountServiceAccountToken"] = True
        self.assertNames("ServiceAccount/cadre-worker", "automount")
        self.pod("Job", "cadre-worker")["serviceAccountName"] = "default"
        self.assertNames("Job/cadre-worker", "names no ServiceAccount")

    def test_resources(self):
        given = self.container("Job", "cadre-worker")["resources"]
        given["requests"]["cpu"] = "3"
        self.assertNames("more cpu than its limit")
        given["limits"]["cpu"] = "1"
        self.assertNames("--threads=2 on 1 cores")
        del given["limits"]["memory"]
        self.assertNames("memory request and a memory limit")

    def test_restricted_profile(self):
        def pod(spec):
            return spec["securityContext"]

        def own(spec):
            return spec["containers"][0]["securityContext"]

        for change, word in (
            (lambda s: s.update(hostNetwork=True), "hostNetwork"),
            (lambda s: pod(s).update(runAsNonRoot=False), "runAsNonRoot"),
            (lambda s: pod(s).update(runAsUser=0), "runAsUser"),
            (lambda s: own(s).update(runAsUser=0), "runAsUser"),
            (lambda s: pod(s).pop("seccompProfile"), "seccompProfile"),
            (lambda s: own(s).pop("allowPrivilegeEscalation"), "allowPrivilegeEscalation"),
            (lambda s: own(s).pop("readOnlyRootFilesystem"), "readOnlyRootFilesystem"),
            (lambda s: own(s)["capabilities"].update(drop=["NET_RAW"]), "capabilities.drop"),
            (lambda s: own(s)["capabilities"].update(add=["SYS_ADMIN"]), "no added"),
            (lambda s: own(s).update(privileged=True), "no privileged"),
            (lambda s: s["containers"][0]["ports"][0].update(hostPort=1), "no hostPort"),
            (lambda s: s["volumes"].append({"name": "h", "hostPath": {"path": "/"}}), "hostPath"),
        ):
            for kind, name in (("StatefulSet", "cadre-coordinator"), ("Job", "cadre-worker")):
                with self.subTest(word, kind=kind):
                    self.setUp()
                    change(self.pod(kind, name))
                    self.assertNames(f"{kind}/{name}", word)

    def test_termination_shorter_than_the_drain(self):
        self.pod("Job", "cadre-worker")["terminationGracePeriodSeconds"] = DRAIN_SECONDS
        self.assertNames("Job/cadre-worker", "draining takes")

    def test_network_without_default_deny(self):
        self.resource("NetworkPolicy", "default-deny")["spec"]["policyTypes"] = ["Ingress"]
        self.assertNames("no policy denies by default")

    def test_network_without_dns(self):
        self.bundle.resources.remove(self.bundle.find("NetworkPolicy", "allow-dns"))
        self.assertNames("DNS")

    def test_network_edge_that_is_missing_on_either_end(self):
        for name, direction, words in (
            ("worker", "egress", "no egress from worker to coordinator:7000"),
            ("aggregator", "ingress", "no ingress from worker to aggregator:7001"),
            ("worker", "ingress", "no ingress from worker to worker:7002"),
        ):
            with self.subTest(words):
                self.setUp()
                self.resource("NetworkPolicy", name)["spec"][direction].pop(0)
                self.assertNames(words)

    def test_network_edge_with_the_wrong_port(self):
        rule = self.resource("NetworkPolicy", "aggregator")["spec"]["ingress"][0]
        rule["ports"][0]["port"] = 7000
        self.assertNames("no ingress from worker to aggregator:7001")
        self.assertNames("ingress from worker to aggregator:7000 is not needed")

    def test_network_that_is_open_to_every_pod(self):
        rule = self.resource("NetworkPolicy", "coordinator")["spec"]["ingress"][0]
        rule["from"] = [{"podSelector": {}}]
        self.assertNames("ingress from coordinator to coordinator:7000 is not needed")

    def test_rules_of_a_type_that_the_policy_does_not_have(self):
        self.resource("NetworkPolicy", "worker")["spec"]["policyTypes"] = ["Ingress"]
        self.assertNames("NetworkPolicy/worker", "has egress rules but not the policy type")

    def test_port_that_nobody_may_reach(self):
        ports = self.container("Job", "cadre-worker")["ports"]
        ports.append({"name": "metrics", "containerPort": 9100})
        self.assertNames("nobody may reach ('worker', 9100)")


if __name__ == "__main__":
    unittest.main()
