"""The sections of a check: what runs, in which order and with which limits."""

import fnmatch

from gpu_check import machine
from gpu_check.check import SEPARATE_CASES, START_LIMIT, by_prefix, json_lines
from gpu_check.local_runs import LocalRuns

SECTIONS = ("smoke", "starts", "tests", "ranks", "demo", "bench", "sanitizer")

# Test programs by the first letters of their names, the most important first; others come in place of "".
TESTS = ("device", "library_math", "kernels", "cuda_plans", "transport_nccl", "", "gpu_plans")

SMOKE_SECONDS = 75
# Test programs with the cases that decide whether the other checks make sense: the device opens and copies; a kernel,
# a convolution in all passes and attention by products agree with the reference; a product and a convolution repeat
# bitwise; fused attention agrees with the formula; a step is captured; two ranks communicate over NCCL.
SMOKE = (
    ("device_gpu_test", "*/CudaDeviceTest.DescribesTheDevice/*:*/CudaDeviceTest.CopiesRoundTrip/*"),
    ("kernels_cuda_test",
     "BackEnds/ElementwiseTest.KnownValues/*:Bf16Test.Convolution:BackEnds/SequenceTest.AttentionKnownAnswer/*"),
    ("library_math_test",
     "LibraryMathTest.ProductsRepeatBitwise:LibraryMathTest.ConvolutionsRepeatBitwise:"
     "LibraryMathTest.FusedAttentionMatchesTheFormula:LibraryMathTest.WorkCanBeCapturedAfterItRanOnce"),
    ("transport_nccl_gpu_test", "Ranks/NcclGpuCollectivesTest.ResultsAreExact/1"),
)  # fmt: skip
SMOKE_BENCH = "lenet"

# The cases of our own kernels; instrumenting the libraries' kernels would take minutes.
SANITIZER_TEST = "kernels"
SANITIZER_CASES = "Cuda*:BackEnds/Norm*:BackEnds/Elementwise*:BackEnds/Loss*:BackEnds/Pooling*"
SANITIZER_KERNELS = "kns=cadre"
SANITIZER_LIMIT = 60


class Sections:
    """Each function runs one section, or the part of it that `item` selects."""

    def __init__(self, check):
        self.check = check
        self.results = check.results

    def smoke(self, _item):
        """In SMOKE_SECONDS: whether the other checks make sense."""
        end = self.check.deadline
        self.check.deadline = min(end, self.check.deadline - self.check.left() + SMOKE_SECONDS)
        tests = {test["name"]: test for test in self.check.about["tests"]}
        for name, pattern in SMOKE:
            if name in tests:
                self.check.run_cases("smoke", tests[name], pattern)
            else:
                self.results.add("smoke", name, "fail", reason="the bundle does not contain it")
        for bench in self.check.about["benches"]:
            if bench["name"] == SMOKE_BENCH:
                self.run_bench("smoke", bench)
        self.check.deadline = end

    def starts(self, _item):
        """Every program finds its libraries, with a GPU or without."""
        for program in sorted((self.check.bundle / "bin").iterdir()):
            if self.check.may_run("starts", program.name):
                self.check.add("starts", program.name, self.check.run([program, "--help"], START_LIMIT))
        for test in self.check.about["tests"]:
            command = [self.check.bundle / "tests" / test["name"], "--gtest_list_tests"]
            if self.check.may_run("starts", test["name"]):
                self.check.add("starts", test["name"], self.check.run(command, START_LIMIT))

    def tests(self, item):
        for test in sorted(self.chosen(item, self.check.about["tests"]), key=priority):
            if by_prefix(SEPARATE_CASES, test["name"], None):
                self.check.run_cases_alone("tests", test, item.pattern)
            else:
                self.check.run_cases("tests", test, item.pattern)

    @staticmethod
    def chosen(item, known):
        """Those of the tests or benchmarks that an item of --only selects."""
        if item.section == "tests":
            return [test for test in known if test["name"].startswith(item.name)]
        return [bench for bench in known if fnmatch.fnmatchcase(bench["name"], item.name or "*")]

    def ranks(self, _item):
        LocalRuns(self.check).ranks()

    def demo(self, _item):
        LocalRuns(self.check).demo()

    def bench(self, item):
        """Runs the benchmarks that the bundle lists and keeps their lines of JSON."""
        for bench in self.chosen(item, self.check.about["benches"]):
            self.run_bench("bench", bench)

    def run_bench(self, section, bench):
        if not self.check.may_run(section, bench["name"]):
            return
        # Benchmarks that take a time limit as an argument end by themselves.
        seconds = max(int(min(bench["seconds"], self.check.left()) - 10), 1)
        words = [word.replace("{bundle}", str(self.check.bundle)).replace("{seconds}", str(seconds))
                 for word in bench["command"]]  # fmt: skip
        lines = []
        partial = ""

        def keep_lines(_child, text):
            """Adds each line when it is complete, so that a benchmark that does not end loses none."""
            nonlocal partial
            complete, newline, partial = (partial + text).rpartition("\n")
            for line in json_lines(complete + newline):
                lines.append(line)
                self.results.add_bench_line(bench["name"], line)

        # PyTorch has its own copies of the libraries.
        outcome = self.check.run(words, bench["seconds"], keep_lines, own_libraries=words[0] != "python3")
        if not outcome.problem() and not lines:
            self.results.add(section, bench["name"], "fail", outcome.seconds, "printed no line of JSON",
                             outcome.output)  # fmt: skip
        else:
            self.check.add(section, bench["name"], outcome, f"{len(lines)} lines")

    def sanitizer(self, _item):
        """Memory errors and races of our own kernels, if the tool is installed and the machine permits it."""
        tool = machine.find_tool("compute-sanitizer")
        if tool is None:
            self.results.add("sanitizer", "kernels", "skip", reason="compute-sanitizer is not on this machine")
            return
        # The option had another name in older versions.
        option = "--kernel-regex" if "--kernel-regex" in self.check.run([tool, "--help"], 10).output else "--kernel-name"
        for test in self.check.about["tests"]:
            for kind in ("memcheck", "racecheck"):
                if test["name"].startswith(SANITIZER_TEST) and self.check.may_run("sanitizer", kind):
                    self.sanitize([tool, "--tool", kind, option, SANITIZER_KERNELS], kind, test)

    def sanitize(self, tool, kind, test):
        name = f"{kind} {test['name']}"
        outcome = self.check.run([*tool, "--error-exitcode", "99", "--print-limit", "20",
                                  *self.check.command_of(test), f"--gtest_filter={SANITIZER_CASES}"],
                                 SANITIZER_LIMIT)  # fmt: skip
        if "Device not supported" in outcome.output:
            reason = "compute-sanitizer does not support this machine's device"
            self.results.add("sanitizer", name, "skip", outcome.seconds, reason)
        elif outcome.timed_out and "=========     at " not in outcome.output:
            reason = f"not finished in {outcome.seconds:.0f} s; no error until then"
            self.results.add("sanitizer", name, "skip", outcome.seconds, reason)
            self.check.require_driver(name)
        else:
            self.check.add("sanitizer", name, outcome)


def priority(test):
    """Position of a test program in TESTS."""
    found = [i for i, name in enumerate(TESTS) if name and test["name"].startswith(name)]
    return found[0] if found else TESTS.index("")
