"""A bundle as bench/gpu_bundle.sh makes it, whose programs are scripts, and a driver compiled for the test.

FAKE_CUDA selects what the driver does: `card` (one GPU), `none`, or `hang` in cuInit. nvidia-smi hangs if the file that
FAKE_SMI_HANGS names exists.
"""

import json
import os
import pathlib
import subprocess
import sys

DRIVER = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int cuInit(unsigned flags) {
  const char* mode = getenv("FAKE_CUDA");
  if (strcmp(mode, "hang") == 0) for (;;) pause();
  return strcmp(mode, "none") == 0 ? 100 : 0;
}
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGetName(char* name, int size, int device) { strncpy(name, "Fake GPU", size); return 0; }
"""

# Behaves as a program with GoogleTest. Each case has an action.
GTEST = '''#!{python}
import fnmatch, os, signal, subprocess, sys, time
CASES = {cases!r}
options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
patterns = options.get("--gtest_filter", "*").split(":")
chosen = [name for name in CASES if any(fnmatch.fnmatchcase(name, each) for each in patterns)]
if "--gtest_list_tests" in sys.argv:
    for name in chosen:
        print(name.split(".")[0] + ".\\n  " + name.split(".")[1] + "  # GetParam() = 1")
    sys.exit(0)
failed = 0
for name in chosen:
    action = CASES[name]
    print(f"[ RUN      ] {{name}}", flush=True)
    result = "OK"
    if action == "crash":
        print("about to crash", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif action == "hang":
        # Ignores SIGTERM, and so does a child that keeps the output open in a session of its own.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        if "PIDS" in os.environ:
            open(os.environ["PIDS"], "a").write(f"{{os.getpid()}} {{child.pid}} ")
        if "FAKE_SMI_HANGS" in os.environ:
            open(os.environ["FAKE_SMI_HANGS"], "w").close()
        time.sleep(1000)
    elif action == "exit":
        sys.exit(0)
    elif action == "skip":
        result = "SKIPPED"
        print("a_test.cc:7: Skipped\\nneeds two GPUs\\n")
    elif action == "fail" or (action == "fails in company" and len(chosen) > 1):
        result = "FAILED"
        print(f"a_test.cc:3: 1 is not 2, CADRE_CUDA_SYNC={{os.environ.get('CADRE_CUDA_SYNC')}}")
        if "NCCL_DEBUG_FILE" in os.environ:
            open(os.environ["NCCL_DEBUG_FILE"].replace("%h", "h").replace("%p", "1"), "w").write("NCCL WARN broken")
            open(os.environ["CUDNN_LOGDEST_DBG"], "w").write("cuDNN ERROR broken")
    elif action == "fault":
        result = "FAILED"
        print("Launch: an illegal memory access was encountered")
    failed += result == "FAILED"
    parameter = ", where GetParam() = 1" if result == "FAILED" else ""
    print(f"[{{result:>9}} ] {{name}}{{parameter}} (250 ms)", flush=True)
    if action == "fault":
        CASES = dict.fromkeys(CASES, "fault")
sys.exit({code} or (1 if failed else 0))
'''


class FakeBundle:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.bundle = self.folder / "cadre-gpu"
        for name in ("bin", "tests", "lib", "source/deploy"):
            (self.bundle / name).mkdir(parents=True)
        self.about = {
            "commit": "abc", "built": "today", "nvcc": "13.0", "architectures": "90a-real",
            "tests": [], "benches": [], "files": {},
        }  # fmt: skip
        self.write()
        self.environment = {
            **os.environ,
            "FAKE_CUDA": "card",
            "LD_LIBRARY_PATH": str(self.folder / "driver"),
            "PATH": f"{self.folder / 'programs'}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder / "python"),
        }
        (self.folder / "python").mkdir()
        self.torch("raise ImportError('no torch')")
        (self.folder / "programs").mkdir()
        self.program("nvidia-smi", '[ -e "$FAKE_SMI_HANGS" ] && exec sleep 1000\necho "GPU 0: Fake GPU"')
        (self.folder / "driver").mkdir()
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", self.folder / "driver/libcuda.so.1"],
            input=DRIVER, text=True, check=True,
        )  # fmt: skip

    def torch(self, text):
        (self.folder / "python/torch.py").write_text(text)

    def program(self, name, text):
        """A program of the machine."""
        self.script(self.folder / "programs" / name, f"#!/bin/sh\n{text}\n")

    def script(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def write(self):
        (self.bundle / "bundle.json").write_text(json.dumps(self.about))

    def add_test(self, name, code=0, **cases):
        """A test program; `cases` has the action of each case of the suite A."""
        self.add_cases(name, {f"A.{case}": action for case, action in cases.items()}, code)

    def add_cases(self, name, cases, code=0):
        text = GTEST.format(python=sys.executable, cases=cases, code=code)
        self.script(self.bundle / "tests" / name, text)
        self.about["tests"].append({"name": name, "arguments": ["--zoo={bundle}/source/zoo"]})
        self.write()

    def add_program(self, name, text):
        self.script(self.bundle / "bin" / name, f"#!/bin/sh\n{text}\n")

    def add_bench(self, name, text, seconds=20):
        self.add_program(f"bench_{name}", text)
        command = [f"{{bundle}}/bin/bench_{name}", "{seconds}"]
        self.about["benches"].append({"name": name, "seconds": seconds, "command": command})
        self.write()


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_name(lines):
    """{(section, name): (result, reason)} of the results."""
    return {
        (line["section"], line["name"]): (line["result"], line["reason"])
        for line in lines
        if line["line"] == "result"
    }
