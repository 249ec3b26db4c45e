"""Finds the external programs and schemas that requirements.txt in this folder pins."""

import os
import pathlib
import unittest

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
FOLDER = CACHE / "cadre/check-tools"


def find(name):
    """The path of `name` in the installed tools.

    Without them the test is skipped, and fails where CADRE_REQUIRE_TOOLS is set, as in tests/run.sh.
    """
    path = FOLDER / name
    if path.exists():
        return path
    reason = f"{path} is missing; `deploy/setup.sh test` installs it"
    if os.environ.get("CADRE_REQUIRE_TOOLS"):
        raise AssertionError(reason)
    raise unittest.SkipTest(reason)
