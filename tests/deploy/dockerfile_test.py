#!/usr/bin/env python3
"""deploy/Dockerfile is sound; and the checks notice when it is not.

usage: dockerfile_test.py REPOSITORY
"""

import pathlib
import sys
import unittest

import dockerfile
import manifests
import programs

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
TEXT = (ROOT / "deploy/Dockerfile").read_text()
USER = 10001


def problems(text):
    return dockerfile.check(text, ROOT, set(programs.HOUSES), USER)


class RepositoryTest(unittest.TestCase):
    def test_dockerfile_is_sound(self):
        self.assertEqual(problems(TEXT), [])

    def test_pods_run_as_the_image_user(self):
        for workload in manifests.load(ROOT / "deploy/kubernetes").workloads():
            context = workload.template["spec"]["securityContext"]
            self.assertEqual(context["runAsUser"], USER)

    def test_version_is_the_one_that_cmake_and_kustomize_say(self):
        kustomization = manifests.load(ROOT / "deploy/kubernetes").kustomization
        version = kustomization["images"][0]["newTag"]
        self.assertIn(f'image.version="{version}"', TEXT)
        self.assertIn(f"project(cadre VERSION {version} ", (ROOT / "CMakeLists.txt").read_text())


class BrokenTest(unittest.TestCase):
    def assertNames(self, old, new, word):
        self.assertIn(old, TEXT)
        found = problems(TEXT.replace(old, new))
        self.assertTrue(any(word in line for line in found), f"{word} not in {found}")

    def test_source_that_does_not_exist(self):
        self.assertNames("COPY deploy/setup.sh ", "COPY deploy/gone.sh ", "gone.sh does")

    def test_source_that_dockerignore_leaves_out(self):
        self.assertNames("COPY . .", "COPY docs .", "leaves out docs")

    def test_unknown_stage(self):
        self.assertNames("--from=build", "--from=biuld", "no earlier stage is named biuld")

    def test_root(self):
        self.assertNames("USER 10001:10001", "USER root", "last USER must be 10001")
        self.assertNames("USER 10001:10001", "", "last USER must be 10001")

    def test_user_by_name(self):
        self.assertNames("USER 10001:10001", "USER cadre", "by number")

    def test_missing_program(self):
        self.assertNames("/src/build/bin/cadre-worker /usr", "/usr", "lacks the program cadre-worker")

    def test_unknown_program(self):
        self.assertNames("bin/cadre-worker /usr", "bin/cadre-work /usr", "copies cadre-work,")

    def test_program_that_is_not_built(self):
        self.assertNames('--cuda "$CUDA" cadre cadre-', '--cuda "$CUDA" cadre-', "does not build")

    def test_tag(self):
        self.assertNames("debian:${DEBIAN} AS", "debian AS", "needs a tag")
        self.assertNames("debian:${DEBIAN}-slim", "debian:latest", "needs a tag")

    def test_setup_is_called(self):
        self.assertNames("setup.sh build", "setup.sh --help", "does not call setup.sh build")
        self.assertNames("setup.sh runtime", "setup.sh --help", "does not call setup.sh runtime")

    def test_packages_outside_of_setup(self):
        self.assertNames("RUN bash", "RUN apt-get install -y x && bash", "in setup.sh only")

    def test_package_lists_left_behind(self):
        self.assertNames(" && rm -rf /var/lib/apt/lists/*", "", "leaves the package lists")

    def test_label(self):
        self.assertNames("image.version", "image.vers", "no label version")

    def test_one_stage(self):
        self.assertEqual(
            problems("FROM debian:12\n"), ["needs a build stage and a runtime stage"]
        )


if __name__ == "__main__":
    unittest.main()
