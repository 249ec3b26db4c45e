"""What the programs of this folder share: lines of results, commands that print them, and clusters of real processes.

A result is one JSON object in a line. Its fields are `bench` (what was measured), the processor (`cpu`; on a GPU
`device`), the parameters, and values, whose names end in their units (bench/results/README.md).
"""
import argparse
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from gpu_check.check import json_lines

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parser(description, programs=True):
    """Has the options --output and, for programs that start some of Cadre's, --bin."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if programs:
        p.add_argument("--bin", type=os.path.abspath, default="build/bin", help="folder of the programs")
    p.add_argument("--output", help="also append the lines to this file")
    return p


def numbers(text):
    return [int(word) for word in text.split(",")]


def cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def memory(process, field):
    """VmRSS or VmHWM of a process, by its id or "self", in bytes."""
    with open(f"/proc/{process}/status", encoding="utf-8") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def read_lines(path):
    """The lines of a file of results; none if there is no such file."""
    if not path or not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def report(args, bench, **fields):
    """Prints a line, appends it to --output, and returns it. Lines that other programs print name their processor."""
    line = {"bench": bench, **({} if "cpu" in fields else {"cpu": cpu_model()}), **fields}
    text = json.dumps(line)
    print(text, flush=True)
    if args.output:
        with open(args.output, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    return line


def last_line(command, what="", **options):
    """The last JSON line that a command prints, and its standard error. Ends this program with the reason if the
    command fails or prints none."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    lines = json_lines(done.stdout)
    if done.returncode != 0 or not lines:
        sys.exit(f"{what or f'{shlex.join(map(str, command))}: exit code {done.returncode}'}:\n{done.stderr[-2000:]}")
    return lines[-1], done.stderr


def train_local(args, spec, what, *flags):
    """last_line of `cadre local` for the text of a run file."""
    with tempfile.NamedTemporaryFile("w", suffix=".textproto") as file:
        file.write(spec)
        file.flush()
        return last_line([f"{args.bin}/cadre", "local", file.name, "-o", "json", *flags], what)


def use_python_package(*folders):
    """Lets this program and those that it starts import the package `cadre` of the build, and modules of `folders`."""
    paths = [str(ROOT / folder) for folder in ("python", *folders)]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("CADRE_BIN", str(ROOT / "build/bin"))
    os.environ.setdefault("CADRE_GROUP_LIBRARY", str(ROOT / "build/lib/libcadre_group.so"))


class Cluster:
    """Daemons and workers without TLS, with their files and logs in a folder: all on loopback, or each on one of
    `hosts` (bench/hosts.py). Ends them when it is closed."""

    def __init__(self, programs, folder, hosts=None):
        self.programs, self.folder, self.hosts = programs, folder, hosts
        self.processes = {}
        # The host and the address of the coordinator.
        self.host, self.coordinator = None, ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(*self.processes)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, name, command, host=None):
        with open(self.path(f"{name}.log"), "ab") as log:
            self.processes[name] = subprocess.Popen(self._on(host, command), stdout=log, stderr=log)

    def start_coordinator(self, *flags, host=None):
        """Starts it, or starts it again at its address, and returns when it listens."""
        port_file = self.path("port")
        if os.path.exists(port_file):
            os.remove(port_file)
        listen = self.coordinator or f"{self._address(host)}:0"
        self._start_daemon("coordinator", host, f"--listen={listen}", f"--port-file={port_file}",
                           f"--store={self.path('store.db')}", *flags)
        while not os.path.exists(port_file) or not open(port_file, encoding="ascii").read().strip():
            if self.processes["coordinator"].poll() is not None:
                sys.exit("the coordinator ended: " + open(self.path("coordinator.log"), encoding="utf-8").read()[-500:])
            time.sleep(0.01)
        self.host = host
        self.coordinator = f"{self._address(host)}:{open(port_file, encoding='ascii').read().strip()}"

    def start_aggregator(self, name, *flags, host=None):
        self._start_daemon(name, host, *self._member(name, host), f"--data-dir={self.path(name)}", *flags,
                           program="cadre-aggregator")

    def worker(self, name, *flags, host=None):
        """The command of a worker."""
        return [f"{self.programs}/cadre-worker", "--insecure", *self._member(name, host), "--threads=1", *flags]

    def start_worker(self, name, *flags, host=None):
        self.start(name, self.worker(name, *flags, host=host), host)

    def call(self, *words):
        """What a command of `cadre` prints as JSON. Errors: RuntimeError."""
        command = [f"{self.programs}/cadre", *words, "--coordinator", self.coordinator, "--insecure", "--quiet", "-o",
                   "json"]
        done = subprocess.run(self._on(self.host, command), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def end(self, *names, number=signal.SIGKILL):
        for name in names:
            self.processes[name].send_signal(number)
        for name in names:
            self.processes[name].wait()

    def _start_daemon(self, name, host, *flags, program="cadre-coordinator"):
        self.start(name, [f"{self.programs}/{program}", "--insecure", *flags], host)

    def _member(self, name, host):
        return f"--coordinator={self.coordinator}", f"--listen={self._address(host)}:0", f"--name={name}"

    def _address(self, host):
        return self.hosts.address(host) if host else "127.0.0.1"

    def _on(self, host, command):
        return self.hosts.command(host, command) if host else command
