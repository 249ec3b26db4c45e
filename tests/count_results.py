#!/usr/bin/env python3
"""Adds up CTest's JUnit files and prints 'N passed, N failed, N skipped' as the last line.

usage: count_results.py [--cases FOLDER] RESULTS.xml ...

Before that it lists the skipped tests with their reasons. Those of GoogleTest programs are read from the XML
files that the programs wrote into FOLDER (GTEST_OUTPUT=xml:FOLDER/).

A GoogleTest or Python unittest program counts with each of its test cases, as its own summary states; any other
test counts once. A program that CTest reports as failed counts as at least one failure, whatever it printed.
Exits with 0 only if something passed and nothing failed.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

SUMMARY = re.compile(r"^\[  (PASSED|FAILED|SKIPPED) {1,2}\] +(\d+) tests?[.,]", re.MULTILINE)
UNITTEST = re.compile(r"^Ran (\d+) tests? in [^\n]*\n+(?:OK|FAILED)(?: \(([^)\n]*)\))?", re.MULTILINE)
# A line of `python3 X_test.py -v`; a docstring puts the result on the next line.
UNITTEST_SKIP = re.compile(
    r"^(\w+) \(__main__\.(\w+)[^)\n]*\)(?:\n[^\n]*)? \.\.\. skipped (['\"])(.*)\3$", re.MULTILINE
)


def count_gtest(output):
    """The last summary of a GoogleTest program, or None."""
    found = {name: int(number) for name, number in SUMMARY.findall(output)}
    if "PASSED" not in found:
        return None
    return found.get("PASSED", 0), found.get("FAILED", 0), found.get("SKIPPED", 0)


def count_unittest(output):
    """The summary of a Python unittest program, or None."""
    match = UNITTEST.search(output)
    if match is None:
        return None
    parts = dict(part.split("=") for part in (match[2] or "").split(", ") if part)
    failed = int(parts.get("failures", 0)) + int(parts.get("errors", 0))
    skipped = int(parts.get("skipped", 0))
    # A test with subtests may fail more than once.
    return max(int(match[1]) - failed - skipped, 0), failed, skipped


def count_case(case):
    """(passed, failed, skipped) of one CTest entry."""
    output = case.findtext("system-out", "")
    counts = count_gtest(output) or count_unittest(output)
    status = case.get("status")
    if status == "run":
        return counts or (1, 0, 0)
    if status == "fail":
        passed, failed, skipped = counts or (0, 0, 0)
        return passed, max(failed, 1), skipped
    # SKIP_*: the test asked to be skipped. Anything else means that it could not be started.
    reason = case.find("skipped")
    if reason is not None and reason.get("message", "").startswith("SKIP_"):
        return counts or (0, 0, 1)
    return (0, 0, 1) if status == "disabled" else (0, 1, 0)


def gtest_skips(folder):
    """(suite, name, reason) of the skipped cases in the XML files of GoogleTest programs."""
    for path in sorted(pathlib.Path(folder).glob("*.xml")):
        try:
            root = ElementTree.parse(path).getroot()
        except ElementTree.ParseError:
            continue  # The program died while it wrote; CTest reports it as failed.
        for case in root.iter("testcase"):
            skip = case.find("skipped")
            if skip is not None:
                # GoogleTest's message is "FILE:LINE\nREASON\n".
                reason = " ".join(skip.get("message", "").split("\n")[1:]).strip()
                yield case.get("classname"), case.get("name"), reason or "no reason given"


def print_skips(skips):
    """A line for each suite and reason: skipped: Suite.Case: reason, or Suite.{One,Other}: reason."""
    grouped = {}
    for suite, name, reason in skips:
        grouped.setdefault((suite, reason), {})[name] = None
    for (suite, reason), names in sorted(grouped.items()):
        listed = ",".join(names) if len(names) == 1 else "{" + ",".join(names) + "}"
        print(f"skipped: {suite}.{listed}: {reason}")


def main(paths):
    skips = []
    if paths[:1] == ["--cases"]:
        skips += gtest_skips(paths[1]) if len(paths) > 1 else []
        paths = paths[2:]
    if not paths:
        sys.exit(__doc__)
    cases = [case for path in paths for case in ElementTree.parse(path).getroot().iter("testcase")]
    totals = [0, 0, 0]
    failures = []
    for case in cases:
        counts = count_case(case)
        totals = [total + count for total, count in zip(totals, counts)]
        if counts[1]:
            failures.append(case.get("name"))
        for name, suite, _, reason in UNITTEST_SKIP.findall(case.findtext("system-out", "")):
            skips.append((suite, name, reason))
    print_skips(skips)
    for name in failures:
        print(f"failed: {name}")
    print(f"{len(cases)} test programs")
    passed, failed, skipped = totals
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
