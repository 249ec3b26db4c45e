#!/usr/bin/env python3
"""The Debian packages: contents, dependencies, symbols, units, and a run with the programs that they contain.

usage: packages_test.py REPOSITORY BUILD
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop(2)).resolve()
ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
PROGRAMS = {
    "cadre": {"cadre"},
    "cadre-daemons": {"cadre-coordinator", "cadre-aggregator"},
    "cadre-worker": {"cadre-worker"},
}
UNITS = {
    "cadre": set(),
    "cadre-daemons": {"cadre-coordinator", "cadre-aggregator"},
    "cadre-worker": {"cadre-worker"},
}
# Units of which a host can start several instances; the user makes a file in /etc/default for each.
TEMPLATES = {"cadre": set(), "cadre-daemons": set(), "cadre-worker": {"cadre-worker@"}}


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, **options)
    if result.returncode != 0:
        raise AssertionError(f"{command}: {result.stdout}{result.stderr}")
    return result.stdout


class PackagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("dpkg-shlibdeps"):
            raise unittest.SkipTest("dpkg-dev is not installed")
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        run("cmake", "--build", BUILD, "--target", "manuals")
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder / "out")
        cls.files = {file.name.partition("_")[0]: file for file in (folder / "out").glob("*.deb")}
        cls.root = folder / "root"
        for file in cls.files.values():
            run("dpkg-deb", "--extract", file, cls.root)
        cls.symbols = {file.name.partition("_")[0]: file for file in (folder / "out").glob("*.ddeb")}
        for file in cls.symbols.values():
            run("dpkg-deb", "--extract", file, folder / "symbols")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def field(self, package, name):
        return run("dpkg-deb", "--field", self.files[package], name).strip()

    def contents(self, package):
        lines = run("dpkg-deb", "--contents", self.files[package]).splitlines()
        return {line.split()[5][1:] for line in lines if not line.split()[5].endswith("/")}

    def test_contents(self):
        self.assertEqual(set(self.files), set(PROGRAMS))
        for package, programs in PROGRAMS.items():
            contents = self.contents(package)
            found = {path.rpartition("/")[2] for path in contents if path.startswith("/usr/bin/")}
            self.assertEqual(found, programs)
            units = {p for p in contents if p.endswith(".service")}
            names = UNITS[package] | TEMPLATES[package]
            expected = {f"/usr/lib/systemd/system/{name}.service" for name in names}
            self.assertEqual(units, expected)
            for name in UNITS[package]:
                self.assertIn(f"/etc/default/{name}", contents)
        verbs = re.findall(r"^  ([a-z-]+)  ", run(self.root / "usr/bin/cadre", "help").partition("\n\nFlags")[0], re.M)
        self.assertGreater(len(verbs), 25)
        for name in ("cadre", *(f"cadre-{verb}" for verb in verbs)):
            self.assertIn(f"/usr/share/man/man1/{name}.1", self.contents("cadre"))
        self.assertIn("/usr/share/cadre/demo.textproto", self.contents("cadre"))
        self.assertIn("/usr/share/cadre/monitoring/alerts.yaml", self.contents("cadre-daemons"))

    def test_dependencies_are_shared_libraries(self):
        for package in PROGRAMS:
            names = re.findall(r"([a-z0-9.+-]+)(?: \([^)]*\))?(?:, |$)", self.field(package, "Depends"))
            self.assertIn("libc6", names)
            self.assertGreater(len(names), 8)
            for name in names:
                self.assertRegex(name, r"^(lib.*|zlib1g)$" if package != "cadre" else r"^((coinor-)?lib.*|zlib1g)$")
                self.assertFalse(name.endswith("-dev"), name)

    def test_symbols_are_in_packages_of_their_own(self):
        self.assertEqual(set(self.symbols), {f"{package}-dbgsym" for package in PROGRAMS})
        for program in (self.root / "usr/bin").iterdir():
            sections = run("readelf", "--section-headers", "--wide", program)
            self.assertNotIn(".debug_info", sections)
            self.assertNotIn(".symtab", sections)
            # Debuggers find the file by this number.
            number = re.search(r"Build ID: (\w\w)(\w+)", run("readelf", "--notes", program))
            file = self.root.parent / f"symbols/usr/lib/debug/.build-id/{number[1]}/{number[2]}.debug"
            self.assertRegex(run("readelf", "--symbols", "--wide", file), r"FUNC +GLOBAL +DEFAULT +\d+ main\n")

    def test_bills_of_materials(self):
        uplot = re.search(r"uPlot \(v([0-9.]+)\)", (ROOT / "coordinator/dashboard/assets/uplot.js").read_text())
        for package, file in self.files.items():
            document = json.loads(run("bash", ROOT / "deploy/sbom.sh", "deb", file))
            version = self.field(package, "Version")
            self.assertEqual(document["name"], f"{package}-{version}")
            parts = {part["name"]: part for part in document["packages"]}
            by_id = {part["SPDXID"]: name for name, part in parts.items()}
            related = {(r["relationshipType"], by_id.get(r["relatedSpdxElement"])) for r in document["relationships"]}
            depends = set(re.findall(r"(?:^|, )([a-z0-9.+-]+)", self.field(package, "Depends")))
            self.assertEqual({name for kind, name in related if kind == "DEPENDS_ON"}, depends)
            for name in depends:
                self.assertEqual(parts[name]["versionInfo"], run("dpkg-query", "-W", "-f", "${Version}", name))
            contained = {"nlohmann-json3-dev"} | ({"uplot"} if package == "cadre-daemons" else set())
            self.assertEqual({name for kind, name in related if kind == "CONTAINS"}, contained)
            if "uplot" in parts:
                locator = parts["uplot"]["externalRefs"][0]["referenceLocator"]
                self.assertEqual(locator, f"pkg:npm/uplot@{uplot[1]}")

    def test_configuration_is_kept(self):
        for package, units in UNITS.items():
            if not units:
                continue
            control = self.root.parent / f"control-{package}"
            run("dpkg-deb", "--control", self.files[package], control)
            kept = set((control / "conffiles").read_text().split())
            self.assertEqual(kept, {f"/etc/default/{name}" for name in units})
            self.assertTrue((control / "postinst").stat().st_mode & 0o111)
            users = re.search(r"then systemd-sysusers (\S+);", (control / "postinst").read_text())[1]
            self.assertIn(f"/usr/lib/sysusers.d/{users}", self.contents(package))
            self.assertIn("\nu cadre ", (self.root / "usr/lib/sysusers.d" / users).read_text())

    def test_units(self):
        units = sorted((self.root / "usr/lib/systemd/system").glob("*.service"))
        self.assertEqual(len(units), 4)
        for unit in units:
            text = unit.read_text()
            program = unit.stem.rstrip("@")
            for setting in ("Type=notify", "ProtectSystem=strict", "NoNewPrivileges=yes"):
                self.assertIn(f"\n{setting}\n", text)
            # Paths beneath a root are opened with openat2, which RestrictSUIDSGID forbids; DynamicUser implies it.
            roots = {"cadre-worker", "cadre-aggregator"}
            self.assertEqual("\nDynamicUser=yes\n" in text, program not in roots)
            self.assertEqual("\nRestrictSUIDSGID=yes\n" in text, program not in roots)
            self.assertEqual("\nUser=cadre\n" in text, program in roots)
            # Flags of the unit and of its defaults exist.
            help_text = run(self.root / "usr/bin" / program, "--help")
            defaults = (self.root / "etc/default" / program).read_text()
            for flag in re.findall(r"--[a-z-]+", text + defaults.partition("CADRE_FLAGS")[2]):
                self.assertIn(f"\n  {flag}", help_text, program)

    def test_units_are_valid(self):
        for package, units in UNITS.items():
            for name in units | TEMPLATES[package]:
                # Programs and manual pages are not installed on this machine.
                text = (self.root / f"usr/lib/systemd/system/{name}.service").read_text()
                checked = self.root.parent / f"{name}.service"
                checked.write_text(text.replace("/usr/bin/", f"{self.root}/usr/bin/"))
                result = subprocess.run(
                    ["systemd-analyze", "--man=no", "verify", checked], capture_output=True, text=True, timeout=60
                )
                self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""), name)
                page = re.search(r"^Documentation=man:([\w-]+)\(1\)$", text, re.M)[1]
                self.assertIn(f"/usr/share/man/man1/{page}.1", self.contents(package))

    def test_installed_programs_train(self):
        """Without the build folder: programs find one another next to `cadre`."""
        folder = self.root.parent / "run"
        folder.mkdir()
        text = (self.root / "usr/share/cadre/demo.textproto").read_text()
        text = re.sub(r"stop \{ epochs: \d+ \}", "stop { steps: 32 }", text)
        text = re.sub(r"warmup_steps: \d+", "warmup_steps: 1", text)
        self.assertIn("{ steps: 32 }", text)
        (folder / "short.textproto").write_text(text)
        out = run(self.root / "usr/bin/cadre", "local", folder / "short.textproto", "-o", "json", cwd=folder)
        self.assertIn('"state":"done"', out.replace(" ", ""))


if __name__ == "__main__":
    unittest.main()
