"""A cluster of real processes on this host, and programs that join it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cadre

_BIN = Path(os.environ["CADRE_BIN"])
_HERE = Path(__file__).parent
# Programs see the packages of the system only if the tests do (tests/group/CMakeLists.txt).
PYTHON = [sys.executable, *(["-S"] if sys.flags.no_site else [])]


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Returns the condition's value once it is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise TimeoutError(f"{what}: not within {seconds} s")


class Program:
    """A Python program whose standard output has a JSON object per line."""

    def __init__(
        self, folder: Path, name: str, command: list[str], variables: dict[str, str] | None = None
    ) -> None:
        self.out = folder / f"{name}.out"
        self.err = folder / f"{name}.err"
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", **(variables or {}))
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)

    def lines(self) -> list[dict[str, Any]]:
        text = self.out.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith('{"') and line.endswith("}")]

    def versions(self) -> dict[int, str]:
        """The digest of each version that the program has reported."""
        return {line["version"]: line["digest"] for line in self.lines() if "version" in line}

    def wait(self, seconds: float = 120) -> int:
        return self.process.wait(timeout=seconds)

    def succeed(self, seconds: float = 120) -> None:
        code = self.wait(seconds)
        assert code == 0, f"exit code {code}: {self.err.read_text()[-3000:]}"


class Cluster:
    """A coordinator and two aggregators, and the programs that a test has started."""

    def __init__(self, folder: Path, lease_ms: int = 3000) -> None:
        self.folder = folder
        self._lease_ms = lease_ms
        self._processes: list[subprocess.Popen] = []
        self._programs: list[Program] = []
        port_file = folder / "port"
        self._coordinator = self._start_coordinator("127.0.0.1:0", f"--port_file={port_file}")
        wait_for(lambda: port_file.exists() and port_file.read_text().strip(), "the coordinator")
        self.address = f"127.0.0.1:{port_file.read_text().strip()}"
        self._aggregators = {name: self._start_aggregator(name) for name in ("a", "b")}
        self.client = cadre.Client(self.address, insecure=True)
        wait_for(lambda: len(self.client.status()["aggregators"]) == 2, "the aggregators")

    def _start_coordinator(self, listen: str, *flags: str) -> subprocess.Popen:
        return self._start_daemon("coordinator", "cadre-coordinator", f"--listen={listen}",
                                  f"--store={self.folder / 'store.db'}", f"--lease_ms={self._lease_ms}", *flags)

    def _start_aggregator(self, name: str) -> subprocess.Popen:
        return self._start_daemon(name, "cadre-aggregator", f"--coordinator={self.address}",
                                  "--listen=127.0.0.1:0", f"--data_dir={self.folder / name}",
                                  f"--name={name}")

    def kill_coordinator(self) -> None:
        self._coordinator.kill()
        self._coordinator.wait()

    def return_coordinator(self) -> None:
        self._coordinator = self._start_coordinator(self.address)

    def restart_aggregator(self, name: str) -> None:
        self._aggregators[name].kill()
        self._aggregators[name].wait()
        self._aggregators[name] = self._start_aggregator(name)

    def _start_daemon(self, name: str, program: str, *flags: str) -> subprocess.Popen:
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen([str(_BIN / program), "--insecure", *flags],
                                       stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def drain(self, program: Program) -> None:
        """Has the coordinator ask the program to leave."""
        workers = [worker["name"] for worker in self.client.status()["workers"]]
        (name,) = [worker for worker in workers if worker.endswith(f"-{program.process.pid}")]
        self.cadre("drain", name)

    def cadre(self, *arguments: str) -> str:
        """Runs the command line tool; returns what it prints."""
        command = [_BIN / "cadre", *arguments, "--insecure", f"--coordinator={self.address}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def start_worker(self, name: str = "native", *flags: str) -> subprocess.Popen:
        return self._start_daemon(name, "cadre-worker", f"--coordinator={self.address}",
                                  "--listen=127.0.0.1:0", f"--name={name}", "--threads=1", *flags)

    def start(
        self, name: str, script: str | Path, *arguments: str, ranks: int = 1,
        environment: dict[str, str] | None = None, coordinator: str | None = None,
    ) -> Program:
        path = str(_HERE / script)
        launch = [*PYTHON, path]
        if ranks > 1:
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                      f"--nproc-per-node={ranks}", path]
        program = Program(self.folder, name, [*launch, "--coordinator", coordinator or self.address, *arguments],
                          environment)
        self._programs.append(program)
        return program

    def stop(self) -> None:
        for program in self._programs:
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()
        self.client.close()
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
