"""Bundles libcadre_group: a library that is built already, or the result of deploy/build.sh."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

_ROOT = Path(__file__).resolve().parent.parent


def _library() -> Path:
    """CADRE_GROUP_LIBRARY, or the library of this checkout."""
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


class BuildWithLibrary(build_py):
    """Copies the library into the package."""

    def run(self) -> None:
        super().run()
        target = Path(self.build_lib) / "cadre" / "libcadre_group.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(_library(), target)


class BinaryDistribution(Distribution):
    """Builds a wheel for one platform and every version of Python."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": BuildWithLibrary},
    distclass=BinaryDistribution,
    # The library is loaded with ctypes, so no interface of Python is used.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
