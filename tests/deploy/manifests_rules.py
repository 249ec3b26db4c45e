"""The rules of manifests.py and behaviour.py with what the sources define about the programs."""

import pathlib
import re
import tempfile

import behaviour
import manifests
import programs
import tools
import yaml


class Rules:
    def __init__(self, root):
        """`root`: the path of the repository."""
        self.folder = root / "deploy/kubernetes"
        self.flags = programs.flags(root)
        self.drain_seconds = programs.drain_seconds(root)
        self.readiness = programs.readiness(root)
        worker = (root / "worker/main.cc").read_text()
        # The exit code of a worker after SIGTERM.
        self.drained = int(re.search(r"kExitDrained = (\d+);", worker)[1])
        # The rules of Prometheus.
        self.alerts = yaml.safe_load((root / "deploy/monitoring/alerts.yaml").read_text())

    def render(self, folder):
        return manifests.render(tools.find("bin/kubectl"), folder)

    def overlay(self, text):
        """The objects of an overlay that refers to the folders of deploy/kubernetes."""
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".test-") as folder:
            header = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
            (pathlib.Path(folder) / "kustomization.yaml").write_text(header + text)
            return self.render(folder)

    def problems(self, objects, versions=manifests.API_VERSIONS):
        for name in ("kubernetes_validate", "cloudcoil", "kubeflow_trainer_api"):
            packages = tools.find(name).parent
        return manifests.check(objects, packages, self.flags, self.drain_seconds, versions)

    def problems_of_newest_api(self, objects):
        return self.problems(objects, manifests.API_VERSIONS[-1:])

    def behaviours(self, objects):
        return behaviour.check(objects, self.drained, self.alerts, self.readiness)
