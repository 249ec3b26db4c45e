"""Runs commands with time limits that hold whatever the commands do.

A command writes to a file, not to a pipe, so a process that it leaves behind cannot keep its reader waiting.
At its limit its process group gets SIGTERM, then SIGKILL; processes that left the group are found as
descendants, because this process adopts orphans. A process that survives SIGKILL, because it waits in a
driver, is left behind and reported.
"""

import codecs
import contextlib
import ctypes
import dataclasses
import os
import signal
import subprocess
import tempfile
import time

# How long a process group may take to end after each signal.
TERM_SECONDS = 1.5
KILL_SECONDS = 1.0
POLL_SECONDS = 0.03
# A command that prints more than this is stopped.
MAX_OUTPUT_BYTES = 64 << 20

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None)


@dataclasses.dataclass
class Outcome:
    # Exit code, or minus the signal that ended the process; None if it did not start or did not end.
    code: object
    seconds: float
    output: str
    # Why the process was stopped; empty if it ended by itself.
    stopped: str = ""
    # True if the process exceeded its limit.
    timed_out: bool = False

    def problem(self):
        """Why the command was not successful; empty if it was."""
        if self.stopped:
            return self.stopped
        if self.code is not None and self.code < 0:
            with contextlib.suppress(ValueError):
                return f"ended by {signal.Signals(-self.code).name}"
        return f"exit code {self.code}" if self.code != 0 else ""


def descendants():
    """The processes that this one started, directly or indirectly, as {pid: parent}."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                    # The second field is a name in parentheses, which may contain anything.
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    found = {}
    frontier = {os.getpid()}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier and pid not in found}
        found.update((pid, parents[pid]) for pid in frontier)
    return found


class Child:
    """A running command with its output. Owned by Processes."""

    def __init__(self, command, folder, environment):
        self.begin = time.monotonic()
        # In append mode, programs that open /dev/stdout again do not overwrite what is there.
        self.file = tempfile.TemporaryFile("a+b", dir=folder)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.read_bytes = 0
        self.output = ""
        self.process = subprocess.Popen(
            [str(word) for word in command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=self.file, stderr=subprocess.STDOUT, start_new_session=True,
            # If this process is killed, its children end, too.
            preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )  # fmt: skip

    def running(self):
        return self.process.poll() is None

    def seconds(self):
        return time.monotonic() - self.begin

    def new_output(self):
        """What the command printed since the last call."""
        text = ""
        while data := os.pread(self.file.fileno(), 1 << 20, self.read_bytes):
            self.read_bytes += len(data)
            text += self.decoder.decode(data)
            if self.read_bytes > MAX_OUTPUT_BYTES:
                break
        self.output += text
        return text

    def signal_group(self, number):
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, number)


def wait_for(children, seconds):
    """Waits until all of them have ended, for at most `seconds` together."""
    deadline = time.monotonic() + seconds
    while any(child.running() for child in children) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


class Processes:
    """The commands of this program. `folder` is their working folder."""

    def __init__(self, folder):
        self.folder = folder
        self.children = []
        # Processes that survived SIGKILL.
        self.survivors = set()
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)

    def start(self, command, environment=None):
        """Errors: OSError if the program cannot be started."""
        self.children.append(Child(command, self.folder, environment))
        return self.children[-1]

    def run(self, command, limit, environment=None, observe=None):
        """Runs a command to its end, for at most `limit` seconds. `observe` is called with the child and with what it
        printed since the last call; if it returns a reason, the command is stopped."""
        try:
            child = self.start(command, environment)
        except OSError as error:
            return Outcome(None, 0.0, "", f"cannot be started: {error}")
        stopped, timed_out = "", False
        while child.running() and not stopped:
            if child.seconds() > limit:
                stopped, timed_out = f"exceeded its limit of {limit:.0f} s", True
                break
            time.sleep(POLL_SECONDS)
            text = child.new_output()
            if child.read_bytes > MAX_OUTPUT_BYTES:
                stopped = f"printed more than {MAX_OUTPUT_BYTES >> 20} MiB"
            elif observe:
                stopped = observe(child, text) or ""
        seconds = child.seconds()
        if not self.end(child, patience=TERM_SECONDS):
            stopped += "; survives SIGKILL" if stopped else "survives SIGKILL"
        text = child.new_output()
        child.file.close()
        if observe and text:
            observe(child, text)
        return Outcome(child.process.returncode, seconds, child.output, stopped, timed_out)

    def end(self, *children, patience=0.0):
        """Ends commands and all processes that they have started, after SIGTERM and `patience` seconds with SIGKILL.
        False if one survives."""
        if patience and any(child.running() for child in children):
            for child in children:
                child.signal_group(signal.SIGTERM)
            wait_for(children, patience)
        # Also if the commands have ended: their children may run.
        for child in children:
            child.signal_group(signal.SIGKILL)
        wait_for(children, KILL_SECONDS)
        survivors = {child.process.pid for child in children if child.running()}
        self.survivors |= survivors
        self.children = [child for child in self.children if child not in children]
        self.end_orphans()
        return not survivors

    def end_orphans(self):
        """Ends the processes that ended commands have left behind, except those that survive SIGKILL."""
        known = {child.process.pid for child in self.children}
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline:
            found = descendants()
            orphans = [pid for pid in found if not self.belongs(pid, found, known | self.survivors)]
            if not orphans:
                return
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(POLL_SECONDS)
        self.survivors.update(orphans)

    @staticmethod
    def belongs(pid, parents, known):
        """Whether a process is one of the running commands or was started by one."""
        while pid in parents:
            if pid in known:
                return True
            pid = parents[pid]
        return False

    def signal_all(self, number):
        for child in self.children:
            child.signal_group(number)

    def end_all(self):
        self.end(*self.children, patience=TERM_SECONDS)
