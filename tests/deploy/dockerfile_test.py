#!/usr/bin/env python3
"""Checks deploy/Dockerfile with hadolint, and that it agrees with the manifests and the build.

usage: dockerfile_test.py REPOSITORY
"""

import pathlib
import re
import subprocess
import sys
import unittest

import programs
import tools

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
TEXT = (ROOT / "deploy/Dockerfile").read_text()
# One instruction a line, as Docker reads it.
LINES = re.sub(r"\\\n\s*", "", TEXT).splitlines()


def instructions(name):
    return [line.removeprefix(name).strip() for line in LINES if line.startswith(name + " ")]


class DockerfileTest(unittest.TestCase):
    def test_hadolint(self):
        command = [tools.find("bin/hadolint"), ROOT / "deploy/Dockerfile"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stdout), (0, ""))

    def test_packages_are_listed_in_setup_only(self):
        self.assertNotIn("apt-get", TEXT)
        for run in instructions("RUN"):
            if "setup.sh" in run:
                self.assertIn("rm -rf /var/lib/apt/lists/*", run)

    def test_sources_exist_and_are_in_the_context(self):
        ignored = (ROOT / ".dockerignore").read_text().split()
        for copy in instructions("COPY"):
            if not copy.startswith("--from="):
                for path in copy.split()[:-1]:
                    self.assertTrue((ROOT / path).exists(), path)
                    self.assertNotIn(path, ignored)

    def test_every_program_is_built_and_copied(self):
        built = re.search(r"build\.sh --cuda \S+ (.*?) &&", TEXT.replace("\\\n", " "))
        self.assertEqual(set(built[1].split()), set(programs.FOLDERS))
        self.assertEqual(programs.defined(ROOT), set(programs.FOLDERS))
        copied = [c for c in instructions("COPY --from=build") if c.endswith("/usr/local/bin/")]
        self.assertEqual(
            {pathlib.Path(path).name for path in copied[0].split()[:-1]}, set(programs.FOLDERS)
        )

    def test_user_is_the_one_of_the_pods(self):
        user = instructions("USER")[-1].partition(":")[0]
        manifests = list((ROOT / "deploy/kubernetes").rglob("*.yaml"))
        found = {u for path in manifests for u in re.findall(r"runAsUser: (\d+)", path.read_text())}
        self.assertEqual(found, {user})

    def test_version_is_the_one_of_cmake_and_of_the_manifests(self):
        version = re.search(r'image\.version="([^"]*)"', TEXT)[1]
        self.assertIn(f"project(cadre VERSION {version} ", (ROOT / "CMakeLists.txt").read_text())
        base = (ROOT / "deploy/kubernetes/base/kustomization.yaml").read_text()
        self.assertIn(f"newTag: {version}\n", base)


if __name__ == "__main__":
    unittest.main()
