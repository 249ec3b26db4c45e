#!/usr/bin/env python3
"""Checks that programs were built with the protections of compiler and linker.

usage: hardening_test.py PROGRAM...
"""

import subprocess
import sys
import unittest

PROGRAMS = sys.argv[1:]
del sys.argv[1:]


def readelf(option, program):
    command = ["readelf", "--wide", option, program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class HardeningTest(unittest.TestCase):
    def test_every_program(self):
        self.assertTrue(PROGRAMS)
        for program in PROGRAMS:
            with self.subTest(program=program):
                self.assertRegex(readelf("--dynamic", program), r"FLAGS_1\).*NOW.*PIE")
                segments = readelf("--program-headers", program)
                self.assertIn("GNU_RELRO", segments)
                self.assertRegex(segments, r"GNU_STACK .* RW ")
                imported = readelf("--dyn-syms", program)
                self.assertIn("__stack_chk_fail", imported)
                self.assertRegex(imported, r"__(mem|str|v?s?n?printf|read|pread|fd)\w*_chk")


if __name__ == "__main__":
    unittest.main()
