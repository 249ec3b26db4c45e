#!/usr/bin/env python3
"""Checks deploy/Dockerfile with hadolint, that it agrees with the manifests and the build, and the bill of materials.

usage: dockerfile_test.py REPOSITORY
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import programs
import tools

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
TEXT = (ROOT / "deploy/Dockerfile").read_text()
# One instruction a line, as Docker reads it.
LINES = re.sub(r"\\\n\s*", "", TEXT).splitlines()
MANIFESTS = sorted((ROOT / "deploy/kubernetes").rglob("*.yaml"))


def instructions(name):
    return [line.removeprefix(name).strip() for line in LINES if line.startswith(name + " ")]


def unpinned(lines):
    """The images from which a stage starts without naming their digest."""
    defaults = dict(line.removeprefix("ARG ").split("=", 1) for line in lines if re.match(r"ARG \w+=", line))
    stages = {"scratch"}
    for line in lines:
        if match := re.match(r"FROM (\S+) AS (\S+)$", line):
            image = re.sub(r"\$\{(\w+)\}", lambda name: defaults[name[1]], match[1])
            if image not in stages and not re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image):
                yield image
            stages.add(match[2])


class DockerfileTest(unittest.TestCase):
    def test_hadolint(self):
        command = [tools.find("bin/hadolint"), ROOT / "deploy/Dockerfile"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stdout), (0, ""))

    def test_base_images_are_pinned(self):
        self.assertEqual(len(instructions("FROM")), len(re.findall(r"^FROM \S+ AS \S+$", TEXT, re.M)))
        self.assertEqual(list(unpinned(LINES)), [])
        tag_only = [re.sub(r"@sha256:\w+", "", line) for line in LINES]
        self.assertTrue(list(unpinned(tag_only)))

    def test_stages_are_the_images_of_the_manifests(self):
        """The image of the stage `daemons` is `cadre`."""
        stages = re.findall(r" --target (daemons|worker) .*-t (\S+):(\S+) ", TEXT)
        built = {"cadre" if stage == "daemons" else f"cadre-{stage}" for stage, *_ in stages}
        self.assertEqual({name for _, name, _ in stages}, built)
        used = {n for path in MANIFESTS for n in re.findall(r"^ +image: ([\w-]+)", path.read_text(), re.M)}
        self.assertEqual(used, built)
        for stage in ("daemons", "worker", "symbols"):
            self.assertIn(f" AS {stage}\n", TEXT)

    def test_images_have_the_packages_and_nothing_to_build_with(self):
        by_stage, stage = {}, ""
        for line in LINES:
            if line.startswith("FROM "):
                stage = line.split()[-1]
            by_stage[stage] = by_stage.get(stage, "") + line + "\n"
        packages = {name: re.findall(r"/packages/([a-z-]+)_\*\.deb", text) for name, text in by_stage.items()}
        self.assertEqual(packages["daemons"], ["cadre", "cadre-daemons"])
        self.assertEqual(packages["worker"], ["cadre-worker"])
        cmake = (ROOT / "cmake/packages.cmake").read_text()
        for name in packages["daemons"] + packages["worker"]:
            self.assertRegex(cmake, rf"PACKAGE_NAME {name}\)")
        for name in ("daemons", "worker"):
            self.assertIn("rm -rf /var/lib/apt/lists/*", by_stage[name])
            self.assertIn("sbom.sh image", by_stage[name])
            # The folder in which cadre-worker looks for CUDA libraries is beside /usr/bin.
            self.assertEqual("/usr/lib/cadre-cuda" in by_stage[name], name == "worker")
            self.assertNotIn("setup.sh", by_stage[name])

    def test_sources_exist_and_are_in_the_context(self):
        ignored = (ROOT / ".dockerignore").read_text().split()
        for copy in instructions("COPY"):
            if not copy.startswith("--from="):
                for path in copy.split()[:-1]:
                    self.assertTrue((ROOT / path).exists(), path)
                    self.assertNotIn(path, ignored)

    def test_every_program_is_packaged(self):
        script = (ROOT / "deploy/package.sh").read_text().replace("\\\n", " ")
        built = re.search(r'build\.sh" .* --cuda \S+ +(.*)', script)[1].split()
        self.assertEqual(set(built), {*programs.FOLDERS, "manuals"})
        self.assertEqual(programs.defined(ROOT), set(programs.FOLDERS))

    def test_user_is_the_one_of_the_pods(self):
        users = {user.partition(":")[0] for user in instructions("USER")}
        found = {u for path in MANIFESTS for u in re.findall(r"runAsUser: (\d+)", path.read_text())}
        self.assertEqual(found, users)
        self.assertIn(f"useradd --uid {users.pop()} ", TEXT)

    def test_version_is_the_one_of_cmake_and_of_the_manifests(self):
        version = re.search(r'image\.version="([^"]*)"', TEXT)[1]
        self.assertIn(f"project(cadre VERSION {version} ", (ROOT / "CMakeLists.txt").read_text())
        for folder in ("base", "worker"):
            text = (ROOT / f"deploy/kubernetes/{folder}/kustomization.yaml").read_text()
            self.assertIn(f"newTag: {version}\n", text)


def status(*packages):
    """A database of dpkg."""
    fields = "Maintainer: M <m@localhost>\nMulti-Arch: same\nDescription: d\n"
    return "".join(
        f"Package: {name}\nStatus: {state}\nArchitecture: {architecture}\nVersion: {version}\n{fields}\n"
        for name, version, architecture, state in packages
    )


INSTALLED = "install ok installed"
LIBRARY = ("libstdc++6", "1:12.2.0-14+deb12u1")
PACKAGES = (
    ("cadre-worker", "0.1.0", "amd64", INSTALLED),
    (*LIBRARY, "amd64", INSTALLED),
    (*LIBRARY, "arm64", INSTALLED),
    ("removed", "1.0", "amd64", "deinstall ok config-files"),
)


class BillOfMaterialsTest(unittest.TestCase):
    def image(self, packages):
        """What deploy/sbom.sh prints on a system with these packages."""
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "arch").write_text("amd64\narm64\n")
            (pathlib.Path(folder) / "status").write_text(status(*packages))
            return subprocess.run(
                ["bash", ROOT / "deploy/sbom.sh", "image", "cadre-worker"],
                env={**os.environ, "DPKG_ADMINDIR": folder, "SOURCE_DATE_EPOCH": "0"},
                capture_output=True,
                text=True,
                timeout=60,
            )

    def test_image(self):
        out = self.image(PACKAGES)
        self.assertEqual((out.returncode, out.stderr), (0, ""))
        document = json.loads(out.stdout)
        self.assertEqual(document["spdxVersion"], "SPDX-2.3")
        self.assertEqual(document["creationInfo"]["created"], "1970-01-01T00:00:00Z")
        self.assertEqual(document["name"], "cadre-worker-0.1.0")
        artifact, *packages = document["packages"]
        locators = [package["externalRefs"][0]["referenceLocator"] for package in packages]
        self.assertEqual(
            locators,
            [
                "pkg:deb/cadre/cadre-worker@0.1.0?arch=amd64",
                "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14%2Bdeb12u1?arch=amd64",
                "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14%2Bdeb12u1?arch=arm64",
            ],
        )
        ids = [package["SPDXID"] for package in document["packages"]]
        self.assertEqual(len(set(ids)), len(ids))
        for name in ids:
            self.assertRegex(name, r"^SPDXRef-[A-Za-z0-9.-]+$")
        related = [(r["spdxElementId"], r["relationshipType"]) for r in document["relationships"]]
        self.assertEqual(related, [("SPDXRef-DOCUMENT", "DESCRIBES")] + [(artifact["SPDXID"], "CONTAINS")] * 3)
        self.assertEqual([r["relatedSpdxElement"] for r in document["relationships"]], ids)

    def test_system_without_our_packages_is_refused(self):
        out = self.image(PACKAGES[1:])
        self.assertNotEqual(out.returncode, 0)
        self.assertEqual(out.stdout, "")


if __name__ == "__main__":
    unittest.main()
