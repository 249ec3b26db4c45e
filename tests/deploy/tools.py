"""Finds the external programs and schemas that requirements.txt in this folder pins."""

import os
import pathlib
import unittest

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
FOLDER = CACHE / "cadre/check-tools"


def missing(reason):
    """Skips the test, or fails it where CADRE_REQUIRE_TOOLS is set, as in tests/run.sh."""
    if os.environ.get("CADRE_REQUIRE_TOOLS"):
        raise AssertionError(reason)
    raise unittest.SkipTest(reason)


def find(name, folder="check-tools"):
    """The path of `name` in the installed tools, or in another folder of the cache; without it: missing()."""
    path = CACHE / "cadre" / folder / name
    if not path.exists():
        missing(f"{path} is missing; `deploy/setup.sh test` installs it")
    return path
