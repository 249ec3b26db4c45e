"""Bundles libcadre_group: a library that is built already, or the result of deploy/build.sh.

CADRE_PREFIX names an installation (cmake --install) instead; its programs become commands of the package, and its
folder `share` a part of it. deploy/wheel.sh uses it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

_ROOT = Path(__file__).resolve().parent.parent
_PREFIX = Path(os.environ["CADRE_PREFIX"]) if "CADRE_PREFIX" in os.environ else None
# The functions of cadre._programs that execute the programs.
_PROGRAMS = {
    "cadre": "cadre",
    "cadre-coordinator": "coordinator",
    "cadre-aggregator": "aggregator",
    "cadre-worker": "worker",
}


def _library() -> Path:
    """The library of CADRE_PREFIX, CADRE_GROUP_LIBRARY, or the library of this checkout."""
    if _PREFIX:
        return _PREFIX / "lib" / "libcadre_group.so"
    if configured := os.environ.get("CADRE_GROUP_LIBRARY"):
        # pip builds in another folder than it was called in.
        library = Path(configured)
        if not library.is_absolute() or not library.is_file():
            raise SystemExit(f"CADRE_GROUP_LIBRARY: {library} is not the absolute path of a file")
        return library
    script = _ROOT / "deploy" / "build.sh"
    if not script.exists():
        raise SystemExit(
            f"{script} is missing: install from a checkout (pip install ./python), or name a library "
            "with CADRE_GROUP_LIBRARY"
        )
    folder = Path(os.environ.get("CADRE_BUILD", _ROOT / "build" / "python"))
    subprocess.run(["bash", script, "--dir", folder, "--cuda", "OFF", "cadre_group"], check=True)
    return folder / "lib" / "libcadre_group.so"


def _shared_files() -> list[tuple[str, list[str]]]:
    """The files below `share` of CADRE_PREFIX, relative to this folder, by the folder below sys.prefix for them."""
    if not _PREFIX:
        return []
    folders = sorted({file.parent for file in (_PREFIX / "share").rglob("*") if file.is_file()})
    return [
        (str(folder.relative_to(_PREFIX)), sorted(os.path.relpath(file) for file in folder.iterdir() if file.is_file()))
        for folder in folders
    ]


class BuildWithLibrary(build_py):
    """Copies the library, and the programs of CADRE_PREFIX, into the package."""

    def run(self) -> None:
        super().run()
        package = Path(self.build_lib) / "cadre"
        package.mkdir(parents=True, exist_ok=True)
        shutil.copy2(_library(), package / "libcadre_group.so")
        if _PREFIX:
            shutil.copytree(_PREFIX / "bin", package / "bin")


class BinaryDistribution(Distribution):
    """Builds a wheel for one platform and every version of Python."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    data_files=_shared_files(),
    entry_points={
        "console_scripts": [
            f"{program} = cadre._programs:{function}" for program, function in _PROGRAMS.items() if _PREFIX
        ]
    },
    cmdclass={"build_py": BuildWithLibrary},
    distclass=BinaryDistribution,
    # The library is loaded with ctypes, so no interface of Python is used.
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
)
