"""The cluster under test: real processes, each on a host of its own (a network namespace) or all on loopback."""
import ctypes
import os
import shutil
import socket
import struct
import subprocess
import threading
import time

import runner

HERE = os.path.dirname(os.path.abspath(__file__))
COORDINATOR = "coordinator"
# Folder of the archive in that of an aggregator (replay.py).
LINKS = ".links"
# The run's folder, in the environment of its processes.
FOLDER = "CADRE_CHAOS_FOLDER"
# A worker finishes the period of its group first.
TERMINATION_SECONDS = 60
# Room for the files of a few rounds of the run below, so that filling the rest is quick.
DISK_MIB = 64
# The rate of every link makes the time of a step: workers wait for their links, not for processors, so a fault
# of one member does not make the others faster.
LINK_RATE = "50mbit"
RUN = """
name: "chaos"
model {{
  input {{ channels: 1 height: 16 width: 16 }}
  layer {{ name: "fc1" fully_connected {{ out_features: {width} }} }}
  layer {{ name: "relu1" relu {{}} }}
  layer {{ name: "fc2" fully_connected {{ out_features: 256 }} }}
  layer {{ name: "relu2" relu {{}} }}
  layer {{ name: "fc3" fully_connected {{ out_features: 10 }} }}
  layer {{ name: "loss" softmax_cross_entropy {{}} }}
}}
data {{ synthetic {{ train_samples: 4096 test_samples: 64 classes: 10 }} }}
batch_per_group: 32
optimizer {{ sgd {{ momentum: 0.9 }} }}
schedule {{ base_rate: 0.001 }}
averaging {{
  every_steps: {every_steps} quorum: {quorum} min_grace_ms: {grace_ms} max_solo_steps: {max_solo_steps}
}}
cluster {{
  groups: {groups} ranks_per_group: {ranks} min_ranks_per_group: {min_ranks} keep_plan: true
  mesh {{ name: "data" size: {ranks} }}
}}
stop {{ steps: 100000000 }}
evaluation {{ every_epochs: 100000000 }}
seed: {seed}
"""


class Member:
    """A process and its folder. Restarted, it is a new process with the same name, host and folder."""

    def __init__(self, name, role, folder):
        self.name = name
        self.role = role
        self.folder = folder
        self.process = None
        # A fault has ended the process and will start another one.
        self.down = False
        # The time of the last start, by the history's clock.
        self.started = 0.0
        os.makedirs(folder)

    @property
    def alive(self):
        return self.process is not None and self.process.poll() is None

    def resident_bytes(self):
        try:
            with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, AttributeError):
            return 0


class Cluster(runner.Cluster):
    """Starts, stops and disturbs the members. `hosts` is None without namespaces. Thread-safe, but only one thread
    may act on a member at a time."""

    def __init__(self, args, folder, history, hosts):
        super().__init__(args.bin, folder, hosts)
        self.args = args
        self.history = history
        self.host = self._host(COORDINATOR)
        self.coordinator = f"{self._address(self.host)}:{7000 if hosts else free_port()}"
        self.run = ""
        names = member_names(args)
        self.members = {name: Member(name, role, os.path.join(folder, name)) for name, role in names.items()}
        self.clock_library = self._build_clock_library()
        for member in self.members.values():
            self.set_clock(member, 0)
            if hosts and member.role == "aggregator":
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", self.data(member)],
                               check=True)

    def of_role(self, role):
        return [member for member in self.members.values() if member.role == role]

    def data(self, member):
        path = os.path.join(member.folder, "data")
        os.makedirs(path, exist_ok=True)
        return path

    def start_all(self):
        for member in self.members.values():
            self.start(member)
            if member.role == "coordinator":
                self.await_status(lambda status: True, 20, "the coordinator listens")
        self.await_status(lambda status: len(status["workers"]) == len(self.of_role("worker"))
                          and len(status["aggregators"]) == len(self.of_role("aggregator")), 30, "all members join")

    def start(self, member):
        """Starts the member's process; its name and folder are those of the process before."""
        log = open(os.path.join(member.folder, "log"), "ab")
        environment = {**os.environ, FOLDER: self.folder}
        if self.clock_library and member.role == "worker":
            environment |= {"LD_PRELOAD": self.clock_library,
                            "CHAOS_CLOCK_FILE": os.path.join(member.folder, "clock")}
        # A host name of its own, as members on one host are treated alike.
        command = ["unshare", "--uts", "sh", "-c", 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"', member.name,
                   *self._command(member)] if self.hosts else self._command(member)
        member.process = subprocess.Popen(self._on(self._host(member.name), command), stdout=log, stderr=log,
                                          stdin=subprocess.DEVNULL, env=environment)
        log.close()
        member.started = self.history.add("process_up", member=member.name)
        member.down = False

    def kill(self, member):
        member.down = True
        member.process.kill()
        member.process.wait()

    def terminate(self, member):
        """SIGTERM; returns when the process has ended."""
        member.down = True
        member.process.terminate()
        code = member.process.wait(TERMINATION_SECONDS)
        self.history.add("terminated", member=member.name, code=code)

    def erase_data(self, member):
        """Removes the files of an aggregator, except for the archive's links, which only this script uses."""
        folder = self.data(member)
        for name in set(os.listdir(folder)) - {LINKS}:
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def erase_store(self):
        folder = self.members[COORDINATOR].folder
        for name in os.listdir(folder):
            if name.startswith("store.db"):
                os.unlink(os.path.join(folder, name))

    def adopt(self):
        """Registers the run with the coordinator again, once the aggregators have joined it."""
        self.await_status(lambda status: len(status["aggregators"]) == len(self.of_role("aggregator")), 30,
                          "the aggregators join the new coordinator")
        self.call("adopt")

    def signal(self, member, number):
        if member.alive:
            member.process.send_signal(number)

    def set_clock(self, member, seconds):
        """Shifts the wall clock of the member's processes."""
        # Written in place: the processes have mapped the file.
        fd = os.open(os.path.join(member.folder, "clock"), os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(fd, struct.pack("<q", int(seconds * 1e9)))
        os.close(fd)

    def busiest_thread(self, member):
        """The thread with the most processor time, except for the main thread."""
        tasks = {}
        for task in os.listdir(f"/proc/{member.process.pid}/task"):
            with open(f"/proc/{member.process.pid}/task/{task}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            tasks[int(task)] = int(fields[11]) + int(fields[12])
        tasks.pop(member.process.pid, None)
        return max(tasks, key=tasks.get)

    def status(self, timeout=1):
        """The coordinator's status; None if it does not answer."""
        try:
            # From the coordinator's own host, so that faults of links do not blind the observer.
            return self.call("status", "--timeout", f"{timeout}s")
        except RuntimeError:
            return None

    def await_status(self, predicate, seconds, what):
        deadline = time.monotonic() + seconds
        status = None
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and predicate(status):
                return status
            time.sleep(0.1)
        raise TimeoutError(f"not within {seconds} s: {what}")

    def submit(self):
        """Submits the run."""
        args = self.args
        path = self.path("run.textproto")
        with open(path, "w", encoding="utf-8") as file:
            file.write(RUN.format(width=args.width, every_steps=args.every_steps, quorum=args.quorum,
                                  grace_ms=args.grace_ms,
                                  max_solo_steps=args.max_solo_steps, groups=args.groups, ranks=args.ranks,
                                  min_ranks=args.min_ranks or args.ranks, seed=args.seed + 1))
        self.run = self.call("run", path, "--detach")["run"]

    def stop_all(self):
        for member in self.members.values():
            if member.process is not None:
                self.kill(member)

    def _command(self, member):
        is_coordinator = member.role == "coordinator"
        address = f"{self._address(self._host(member.name))}:{7001 if self.hosts else 0}"
        common = ["--insecure", f"--listen={self.coordinator if is_coordinator else address}", "--logtostderr"]
        coordinator = f"--coordinator={self.coordinator}"
        program = f"{self.programs}/cadre-{member.role}"
        if is_coordinator:
            # The replay needs the commit records of all rounds.
            return [program, *common, f"--store={member.folder}/store.db", f"--lease-ms={self.args.lease_ms}",
                    "--keep-commits=1000000000"]
        if member.role == "aggregator":
            return [program, *common, coordinator, f"--data-dir={self.data(member)}", f"--name={member.name}",
                    "--checkpoint-root=/"]
        shared = "false" if self.hosts else "true"
        return [program, *common, coordinator, f"--name={member.name}", "--threads=1", f"--shared-memory={shared}",
                "--data-root=/", "--checkpoint-root=/"]

    def _host(self, name):
        return name if self.hosts else None

    def _build_clock_library(self):
        path = os.path.join(self.folder, "clock_shift.so")
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", path, os.path.join(HERE, "clock_shift.c"), "-ldl"]
        try:
            subprocess.run(command, check=True)
            return path
        except (OSError, subprocess.CalledProcessError):
            return ""


def member_names(args):
    """Roles by name, in the order of their start."""
    names = {COORDINATOR: "coordinator"}
    names |= {f"aggregator-{i}": "aggregator" for i in range(args.aggregators)}
    names |= {f"worker-{i}": "worker" for i in range(args.groups * args.ranks + args.spares)}
    return names


def processes_of(folder):
    """Ids of the members' processes of the run in a folder."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"{FOLDER}={folder}".encode() in file.read().split(b"\0"):
                    yield int(pid)
        except OSError:
            continue


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ThreadStop:
    """Stops one thread of another process by ptrace, from start() to end(). Errors: OSError from start()."""

    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, thread):
        self.thread = thread
        self.error = 0
        self.stopped = threading.Event()
        self.over = threading.Event()
        # Only the thread that has attached may detach.
        self.tracer = threading.Thread(target=self._trace, daemon=True)

    def start(self):
        self.tracer.start()
        self.stopped.wait()
        if self.error:
            raise OSError(self.error, os.strerror(self.error))

    def end(self):
        self.over.set()
        self.tracer.join()

    def _trace(self):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long] * 4
        libc.ptrace.restype = ctypes.c_long
        for request in (self.SEIZE, self.INTERRUPT):
            if libc.ptrace(request, self.thread, 0, 0) != 0:
                self.error = ctypes.get_errno()
                self.stopped.set()
                return
        # The thread is not the main thread of its process, so no other wait takes this.
        os.waitpid(self.thread, self.WALL)
        self.stopped.set()
        self.over.wait()
        libc.ptrace(self.DETACH, self.thread, 0, 0)
