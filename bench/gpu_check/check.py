"""What all sections share: the bundle, the machine, the time that is left, and runs of test programs."""

import json
import os
import pathlib
import time

from gpu_check import gtest, machine
from gpu_check.results import clip

# Time limits in seconds of test programs, by the first letters of their names.
TEST_LIMITS = {"device": 30, "library_math": 120, "kernels": 180, "cuda_plans": 100, "transport_nccl": 60}
TEST_LIMIT = 100
# Each case of these programs runs in a process of its own, with this limit: a case has several ranks and devices.
SEPARATE_CASES = {"gpu_plans": 40}
# A case that takes longer hangs.
CASE_LIMIT = 100
# The limit of a failed case that runs again alone, and of one under compute-sanitizer.
ALONE_LIMIT = 40
ALONE_MEMCHECK_LIMIT = 60
# How long a program may take to start.
START_LIMIT = 20


def by_prefix(table, name, default):
    return next((value for prefix, value in table.items() if name.startswith(prefix)), default)


class Check:
    """Thread-compatible."""

    def __init__(self, bundle, about, processes, results, deadline):
        self.bundle = bundle
        self.about = about
        self.processes = processes
        self.results = results
        self.deadline = deadline
        self.folders = machine.library_folders()
        # Why nothing more may run: the driver hangs.
        self.stopped = ""
        # Failed cases of test programs: (section, test, case, whether a kernel failed).
        self.failed_cases = []

    def left(self):
        return self.deadline - time.monotonic()

    def environment(self, own_libraries=True, **more):
        libraries = [str(self.bundle / "lib")] if own_libraries else []
        libraries += self.folders
        libraries += [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "HOME": str(self.processes.folder), **more}

    def run(self, command, limit, observe=None, own_libraries=True, **environment):
        """Runs a command for at most `limit` seconds, or the remaining time."""
        outcome = self.processes.run(command, max(min(limit, self.left()), 0.1),
                                     self.environment(own_libraries, **environment), observe)  # fmt: skip
        if outcome.timed_out and self.left() <= 0:
            outcome.stopped = f"not finished in {outcome.seconds:.0f} s, when the time for all checks was over"
        return outcome

    def may_run(self, section, name):
        """False, with a result, if nothing may run any more."""
        reason = self.stopped or ("no time was left" if self.left() <= 0 else "")
        if reason:
            self.results.add(section, name, "skip", reason=reason)
        return not reason

    def add(self, section, name, outcome, ok="", **more):
        """Adds the result of a command that should exit with 0. After one that hung or crashed, the driver must
        answer."""
        problem = outcome.problem()
        if outcome.timed_out and self.left() <= 0:
            self.results.add(section, name, "skip", outcome.seconds, problem, **more)
        else:
            self.results.add(section, name, "fail" if problem else "pass", outcome.seconds, problem or ok,
                             outcome.output, **more)  # fmt: skip
        if problem and (outcome.code is None or outcome.code < 0 or gtest.KERNEL_FAULT.search(outcome.output)):
            self.require_driver(f"{section}/{name}")

    def require_driver(self, after):
        """Stops all checks if the driver does not answer after a hang or the fault of a kernel."""
        if not self.stopped and not machine.driver_answers(self.processes):
            self.stopped = f"the driver did not answer in {machine.ANSWER_SECONDS:.0f} s after {after}"

    # Test programs.

    def command_of(self, test):
        arguments = [word.replace("{bundle}", str(self.bundle)) for word in test["arguments"]]
        return [self.bundle / "tests" / test["name"], *arguments]

    def cases_of(self, section, test, pattern):
        """The cases of a program that match a pattern of GoogleTest (without: those that CTest runs). Adds a failure
        if there are none."""
        words = [f"--gtest_filter={pattern}"] if pattern else []
        outcome = self.run([*self.command_of(test), *words, "--gtest_list_tests"], START_LIMIT)
        cases = gtest.list_cases(outcome.output)
        if outcome.problem():
            self.add(section, test["name"], outcome)
            return []
        if not cases:
            self.results.add(section, test["name"], "fail", outcome.seconds, f"no case matches '{pattern}'")
        return cases

    def run_cases(self, section, test, pattern="", limit=None):
        """Runs cases of a program, with a result for each. If one crashes or hangs, the others run in a new process."""
        if not self.may_run(section, test["name"]):
            return
        remaining = self.cases_of(section, test, pattern)
        limit = limit or by_prefix(TEST_LIMITS, test["name"], TEST_LIMIT)
        end = time.monotonic() + limit
        why = ""
        while remaining and not why:
            seconds = min(end, self.deadline) - time.monotonic()
            run = CaseRun(self, section, test, remaining)
            run.run(seconds)
            if len(run.remaining) == len(remaining):
                why = "the program does not run them"
            remaining = run.remaining
            if self.stopped or self.left() <= 0:
                why = self.stopped or "no time was left"
            elif time.monotonic() >= end:
                why = f"the limit of {limit:.0f} s was reached"
        if remaining:
            self.results.add(section, test["name"], "skip", reason=f"{len(remaining)} cases did not run: {why}",
                             cases=remaining)  # fmt: skip

    def run_cases_alone(self, section, test, pattern=""):
        """Runs every case in a process of its own."""
        if not self.may_run(section, test["name"]):
            return
        for case in sorted(self.cases_of(section, test, pattern), key=cost_of):
            if self.may_run(section, f"{test['name']}/{case}"):
                CaseRun(self, section, test, [case]).run(by_prefix(SEPARATE_CASES, test["name"], ALONE_LIMIT))


# Networks of gpu_plans_test, the cheapest first.
NETWORKS = ("lenet", "mlp", "gpt", "resnet18", "alexnet", "vgg", "resnet50")


def cost_of(case):
    """A key that sorts cases such as Zoo/GpuPlans.EqualOneRank/resnet18On2 by their cost."""
    name = case.rpartition("/")[2]
    network = next((i for i, prefix in enumerate(NETWORKS) if name.startswith(prefix)), len(NETWORKS))
    ranks = name[len(name.rstrip("0123456789")) :]
    return int(ranks or 1) > 1, network, int(ranks or 1), name


class CaseRun:
    """One process that runs cases of a test program."""

    def __init__(self, check, section, test, cases, **environment):
        self.check = check
        self.section = section
        self.test = test
        self.remaining = list(cases)
        self.environment = environment
        self.reader = gtest.CaseReader()
        self.case_begin = time.monotonic()
        self.failures = 0
        self.fault = ""

    def run(self, limit):
        command = [*self.check.command_of(self.test), f"--gtest_filter={':'.join(self.remaining)}"]
        outcome = self.check.run(command, limit, self.observe, **self.environment)
        unfinished = self.reader.current
        if self.fault:
            self.check.require_driver(self.fault)
        elif unfinished in self.remaining:
            self.add_unfinished(unfinished, outcome)
        elif outcome.problem() and not (outcome.code == 1 and self.failures):
            self.check.add(self.section, self.test["name"], outcome)
        elif self.remaining:
            reason = f"ended without running {len(self.remaining)} of its cases"
            self.check.results.add(self.section, self.test["name"], "fail", outcome.seconds, reason, outcome.output)

    def observe(self, child, text):
        """Adds the results of the cases that have ended. Returns why the process must be stopped."""
        for case in self.reader.read(text):
            self.case_begin = time.monotonic()
            if case.name in self.remaining and not self.fault:
                self.remaining.remove(case.name)
                self.add_case(case)
        if self.fault:
            return f"{self.fault}: a kernel failed"
        if child.running() and time.monotonic() - self.case_begin > CASE_LIMIT:
            return f"no case ended in {CASE_LIMIT} s"
        return ""

    def add_case(self, case):
        reason = case.reason() if case.result == "skip" else ""
        self.check.results.add(self.section, f"{self.test['name']}/{case.name}", case.result, case.seconds, reason,
                               case.output)  # fmt: skip
        if case.result == "fail":
            fault = bool(gtest.KERNEL_FAULT.search(case.output))
            self.add_failure(case.name, fault)
            if fault:
                self.fault = case.name

    def add_failure(self, case, fault):
        self.failures += 1
        self.check.failed_cases.append((self.section, self.test, case, fault))

    def add_unfinished(self, case, outcome):
        """Adds the result of the case during which the process ended."""
        self.remaining.remove(case)
        name = f"{self.test['name']}/{case}"
        output = self.reader.unfinished()
        seconds = time.monotonic() - self.case_begin
        if outcome.timed_out and self.check.left() <= 0:
            self.check.results.add(self.section, name, "skip", seconds, outcome.stopped)
        else:
            reason = outcome.problem() or "the program ended"
            self.check.results.add(self.section, name, "fail", seconds, f"during this case: {reason}", output)
            self.add_failure(case, bool(gtest.KERNEL_FAULT.search(output)))
        self.check.require_driver(name)


def run_again(check):
    """Runs each failed case alone, with synchronous kernels and with the logs of the libraries."""
    for section, test, case, fault in check.failed_cases:
        name = f"{section}/{test['name']}/{case}"
        if not check.may_run("alone", name):
            continue
        folder = pathlib.Path(check.processes.folder) / f"logs-{len(os.listdir(check.processes.folder))}"
        folder.mkdir()
        command = [*check.command_of(test), f"--gtest_filter={case}"]
        outcome = check.run(command, ALONE_LIMIT, **diagnostics(folder))
        logs = {path.name: path.read_text(errors="replace") for path in sorted(folder.iterdir())}
        check.add("alone", name, outcome, "passes alone", logs={file: clip(text) for file, text in logs.items() if text})
        tool = machine.find_tool("compute-sanitizer")
        if fault and tool and check.may_run("alone", f"memcheck {name}"):
            command = [tool, "--tool", "memcheck", "--error-exitcode", "99", "--print-limit", "20", *command]
            check.add("alone", f"memcheck {name}", check.run(command, ALONE_MEMCHECK_LIMIT))


def diagnostics(folder):
    """Variables under which kernels are synchronous and libraries write their errors into a folder."""
    return {
        "CADRE_CUDA_SYNC": "1",
        "NCCL_DEBUG": "WARN",
        "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p",
        "CUDNN_LOGERR_DBG": "1",
        "CUDNN_LOGDEST_DBG": f"{folder}/cudnn",
    }


def json_lines(output):
    """The lines of an output that are JSON objects."""
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found
