#!/usr/bin/env python3
"""Checks that sources look as .clang-format says; `format_test.py --fix` changes those that do not.

deploy/setup.sh installs this version of clang-format: versions differ in where they break lines.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from tidy_test import ROOT, files_below

PROGRAM = "clang-format-14"
# Sources of one call.
BATCH = 50
DIFFERS = re.compile(r"^(/\S+?):\d+:\d+: error: code should be clang-formatted", re.MULTILINE)


def sources():
    return [str(ROOT / name) for name in sorted(files_below(ROOT)) if name.endswith((".h", ".cc", ".cu"))]


def differing(files):
    def check(batch):
        done = subprocess.run([PROGRAM, "--dry-run", "-Werror", *batch], check=False, capture_output=True, text=True)
        names = set(DIFFERS.findall(done.stderr))
        if (done.returncode != 0) != bool(names):
            raise RuntimeError(f"{PROGRAM} ended with {done.returncode}: {done.stderr}")
        return names

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        batches = [files[begin:begin + BATCH] for begin in range(0, len(files), BATCH)]
        return sorted(set().union(*pool.map(check, batches)))


@unittest.skipIf(shutil.which(PROGRAM) is None and not os.environ.get("CADRE_REQUIRE_TOOLS"),
                 f"there is no {PROGRAM}")
class FormatTest(unittest.TestCase):
    def test_sources_are_formatted(self):
        files = sources()
        self.assertGreater(len(files), 1000)
        names = [str(pathlib.Path(name).relative_to(ROOT)) for name in differing(files)]
        self.assertEqual([], names, "run tests/architecture/format_test.py --fix")


if __name__ == "__main__":
    if "--fix" in sys.argv[1:]:
        subprocess.run([PROGRAM, "-i", *differing(sources())], check=True)
    else:
        unittest.main()
