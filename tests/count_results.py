#!/usr/bin/env python3
"""Adds up CTest's JUnit files and prints 'N passed, N failed, N skipped' as the last line.

usage: count_results.py [--cases FOLDER] RESULTS.xml ...

With --cases it first lists the tests that were skipped and why, from the XML files that GoogleTest programs
wrote into the folder (GTEST_OUTPUT=xml:FOLDER/).

A GoogleTest or Python unittest program counts with each of its test cases, as its own summary states
them; any other test counts once. A program that CTest calls failed counts as at least one failure, whatever it
printed. Exit code 0 only when something passed and nothing failed.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

SUMMARY = re.compile(r"^\[  (PASSED|FAILED|SKIPPED) {1,2}\] +(\d+) tests?[.,]", re.MULTILINE)
UNITTEST = re.compile(r"^Ran (\d+) tests? in [^\n]*\n+(?:OK|FAILED)(?: \(([^)\n]*)\))?", re.MULTILINE)


def count_gtest(output):
    """The last summary of a GoogleTest program; None when it printed none."""
    found = {name: int(number) for name, number in SUMMARY.findall(output)}
    if "PASSED" not in found:
        return None
    return found.get("PASSED", 0), found.get("FAILED", 0), found.get("SKIPPED", 0)


def count_unittest(output):
    """The summary of a Python unittest program; None when it printed none."""
    match = UNITTEST.search(output)
    if match is None:
        return None
    parts = dict(part.split("=") for part in (match[2] or "").split(", ") if part)
    failed = int(parts.get("failures", 0)) + int(parts.get("errors", 0))
    skipped = int(parts.get("skipped", 0))
    # A test with subtests may fail more than once.
    return max(int(match[1]) - failed - skipped, 0), failed, skipped


def count_output(output):
    return count_gtest(output) or count_unittest(output)


def count_case(case):
    """(passed, failed, skipped) of one CTest entry."""
    status = case.get("status")
    if status == "run":
        return count_output(case.findtext("system-out", "")) or (1, 0, 0)
    if status == "fail":
        passed, failed, skipped = count_output(case.findtext("system-out", "")) or (0, 0, 0)
        return passed, max(failed, 1), skipped
    # CTest names the reason: only a test that itself asked to be skipped is one; a program that
    # could not be started is a failure.
    reason = case.find("skipped")
    message = reason.get("message", "") if reason is not None else ""
    if message.startswith("SKIP_"):
        passed, failed, skipped = count_output(case.findtext("system-out", "")) or (0, 0, 1)
        return passed, failed, skipped
    if status == "disabled":
        return 0, 0, 1
    return 0, 1, 0


def skipped_cases(folder):
    """(suite, reason) -> names of the test cases that GoogleTest's files in the folder call skipped."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.xml")):
        try:
            root = ElementTree.parse(path).getroot()
        except ElementTree.ParseError:
            continue  # of a program that died while it wrote; CTest calls that one failed
        for case in root.iter("testcase"):
            skip = case.find("skipped")
            if skip is not None:
                # GoogleTest's message is "FILE:LINE\nREASON\n".
                reason = " ".join(skip.get("message", "").split("\n")[1:]).strip()
                names = found.setdefault((case.get("classname"), reason or "no reason given"), [])
                if case.get("name") not in names:
                    names.append(case.get("name"))
    return found


def print_skipped(folder):
    """A line for each suite and reason: skipped: Suite.Case: reason, or Suite.{One,Other}: reason."""
    for (suite, reason), names in sorted(skipped_cases(folder).items()):
        listed = names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
        print(f"skipped: {suite}.{listed}: {reason}")


def main(paths):
    if paths and paths[0] == "--cases":
        if len(paths) < 2:
            sys.exit(__doc__)
        print_skipped(paths[1])
        paths = paths[2:]
    if not paths:
        sys.exit(__doc__)
    totals = [0, 0, 0]
    failures = []
    programs = 0
    for path in paths:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            programs += 1
            counts = count_case(case)
            totals = [total + count for total, count in zip(totals, counts)]
            if counts[1]:
                failures.append(case.get("name"))
    for name in failures:
        print(f"failed: {name}")
    print(f"{programs} test programs")
    passed, failed, skipped = totals
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
