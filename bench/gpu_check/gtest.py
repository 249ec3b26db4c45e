"""Cases of GoogleTest programs, reported as they end.

A program prints a line when a case begins and when it ends. A case that began and did not end when the program
did has crashed or hung; the cases after it run in a new process.
"""

import dataclasses
import re

RUN = re.compile(r"\[ RUN      \] (\S+)$")
END = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \((\d+) ms\)$")
RESULTS = {"OK": "pass", "FAILED": "fail", "SKIPPED": "skip"}

# After these errors every later call of the process fails, so that the following cases need a new one.
KERNEL_FAULT = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction"
    r"|device-side assert|invalid program counter|hardware stack error|invalid address space"
    r"|launch timed out|cudaError(IllegalAddress|MisalignedAddress|LaunchFailure|Assert)"
)


@dataclasses.dataclass
class Case:
    name: str
    result: str
    seconds: float
    output: str

    def reason(self):
        """Why a case was skipped."""
        lines = self.output.strip().split("\n")
        return " ".join(lines[1:] if lines[0].rstrip().endswith("Skipped") else lines).strip()


class CaseReader:
    """Finds the cases in the output of a program, piece by piece."""

    def __init__(self):
        self.line = ""
        self.lines = []
        # The case that has begun and not ended.
        self.current = None

    def read(self, text):
        """The cases that ended in this part of the output."""
        *lines, self.line = (self.line + text).split("\n")
        ended = []
        for line in lines:
            if begin := RUN.search(line):
                self.current, self.lines = begin[1], []
            elif (end := END.search(line)) and end[2] == self.current:
                output = "\n".join(self.lines)
                ended.append(Case(end[2], RESULTS[end[1]], int(end[3]) / 1000, output))
                self.current, self.lines = None, []
            elif self.current:
                self.lines.append(line)
        return ended

    def unfinished(self):
        """What the case printed that has begun and not ended."""
        return "\n".join([*self.lines, self.line])


def list_cases(output):
    """The names that a program prints for --gtest_list_tests."""
    cases, suite = [], None
    for line in output.splitlines():
        name = line.split("#")[0].rstrip()
        if re.fullmatch(r"\S+\.", name):
            suite = name
        elif suite and re.fullmatch(r"  \S+", name):
            cases.append(suite + name.strip())
    return cases
