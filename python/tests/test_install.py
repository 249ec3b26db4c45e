"""`pip install ./python` in a virtual environment, with a library that is built already."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

# Imports the package, and calls the library that it bundles.
_USE = """
import cadre
try:
    cadre.Client("127.0.0.1:9", insecure=True).status()
except cadre.CadreError as error:
    print(cadre.__file__, error)
"""


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """A copy of the package's sources, because pip builds in their folder."""
    unneeded = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    return shutil.copytree(root / "python", tmp_path / "checkout" / "python", ignore=unneeded)


def pip(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs pip without an index: setuptools is the one that the tests' packages contain."""
    setuptools = util.find_spec("setuptools")
    assert setuptools is not None and setuptools.origin is not None
    environment["PYTHONPATH"] = str(Path(setuptools.origin).parent.parent)
    command = [sys.executable, "-m", "pip", *map(str, arguments), "--no-index", "--no-deps",
               "--no-build-isolation", "--disable-pip-version-check"]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_install(checkout: Path, tmp_path: Path) -> None:
    wheel = pip("wheel", checkout, "--wheel-dir", tmp_path)
    assert wheel.returncode == 0, wheel.stdout + wheel.stderr
    # The library does not depend on the version of Python.
    (file,) = tmp_path.glob("cadre-*-cp39-abi3-linux_*.whl")

    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    assert pip("--python", python, "install", file).returncode == 0
    bare = {name: value for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "CADRE_GROUP_LIBRARY")}
    used = subprocess.run([python, "-c", _USE], capture_output=True, text=True, env=bare, cwd=tmp_path)
    assert used.stdout.startswith(str(venv)), used.stderr
    assert "127.0.0.1:9" in used.stdout


def test_missing_library_is_named(checkout: Path, tmp_path: Path) -> None:
    wheel = pip("wheel", checkout, "--wheel-dir", tmp_path, CADRE_GROUP_LIBRARY="build/gone.so")
    assert wheel.returncode != 0
    assert "CADRE_GROUP_LIBRARY: build/gone.so is not the absolute path of a file" in wheel.stderr
