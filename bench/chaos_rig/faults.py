"""The kinds of faults, and the schedule by which they are injected."""
import errno
import os
import random
import signal
import subprocess
import threading
import time

from chaos_rig.cluster import COORDINATOR, ThreadStop

HOUR = 3600


class Fault:
    """One fault of one member, from begin() to end(). Subclasses name the roles that they affect and how long they
    last, in seconds."""

    roles = ("worker", "aggregator", "coordinator")
    seconds = (2, 8)
    needs_hosts = True

    def __init__(self, cluster, member, rng):
        self.cluster = cluster
        self.member = member
        self.rng = rng

    def begin(self):
        raise NotImplementedError

    def end(self):
        raise NotImplementedError


class Kill(Fault):
    """SIGKILL, and a new process after a delay."""

    needs_hosts = False

    def begin(self):
        self.cluster.kill(self.member)

    def end(self):
        self.cluster.start(self.member)


class Restart(Kill):
    """SIGTERM, and a new process when the old one has ended, as in a rolling update."""

    seconds = (0, 0)

    def begin(self):
        self.cluster.terminate(self.member)


class Stop(Fault):
    """SIGSTOP, then SIGCONT."""

    needs_hosts = False

    def begin(self):
        self.cluster.signal(self.member, signal.SIGSTOP)

    def end(self):
        self.cluster.signal(self.member, signal.SIGCONT)


class Hang(Fault):
    """Stops the busiest thread; the others, which send heartbeats, continue."""

    roles = ("worker",)
    needs_hosts = False

    def begin(self):
        self.stop = ThreadStop(self.cluster.busiest_thread(self.member))
        self.stop.start()

    def end(self):
        self.stop.end()


class Disconnect(Fault):
    """No link."""

    def begin(self):
        self.cluster.hosts.set_link(self.member.name, "down")

    def end(self):
        self.cluster.hosts.set_link(self.member.name, "up")


class Mute(Fault):
    """A partition in one direction: only messages from the member to the coordinator are lost."""

    roles = ("worker", "aggregator")

    def begin(self):
        self.cluster.hosts.set_route(self.member.name, COORDINATOR, "down")

    def end(self):
        self.cluster.hosts.set_route(self.member.name, COORDINATOR, "up")


class Slow(Fault):
    """A link of 10 Mbit/s."""

    roles = ("worker", "aggregator")
    seconds = (5, 12)

    def begin(self):
        self.cluster.hosts.set_rate(self.member.name, "10mbit")

    def end(self):
        self.cluster.hosts.set_rate(self.member.name, self.cluster.hosts.rate)


class FullDisk(Fault):
    """Another file fills the file system of an aggregator."""

    roles = ("aggregator",)

    def begin(self):
        self.path = os.path.join(self.cluster.data(self.member), ".filler")
        block = bytes(1 << 20)
        with open(self.path, "wb", buffering=0) as file:
            # A short write precedes the error, so the last byte is taken.
            while True:
                try:
                    file.write(block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break

    def end(self):
        os.unlink(self.path)


class LoseDisk(Kill):
    """An aggregator is killed and loses its folder; a new process starts with an empty one."""

    roles = ("aggregator",)

    def begin(self):
        super().begin()
        self.cluster.erase_data(self.member)


class LoseStore(Kill):
    """The coordinator is killed and loses its store; a new process adopts the run of the aggregators."""

    roles = ("coordinator",)

    def begin(self):
        super().begin()
        self.cluster.erase_store()

    def end(self):
        super().end()
        self.cluster.adopt()


class Clock(Fault):
    """The wall clock of a worker jumps by an hour, forth or back, and later to where it was."""

    roles = ("worker",)
    needs_hosts = False

    def begin(self):
        self.cluster.set_clock(self.member, self.rng.choice((HOUR, -HOUR)))

    def end(self):
        self.cluster.set_clock(self.member, 0)


KINDS = {"kill": Kill, "restart": Restart, "stop": Stop, "hang": Hang, "disconnect": Disconnect, "mute": Mute, "slow": Slow,
         "full_disk": FullDisk, "lose_disk": LoseDisk, "lose_store": LoseStore, "clock": Clock}


# A restart is no fault; and commit records are lost with the store, so the rounds before cannot be replayed.
ON_REQUEST = ("restart_worker", "restart_aggregator", "restart_coordinator", "lose_store_coordinator")


def kinds_of(cluster, only):
    """Names such as kill_worker, of the faults that are possible on this cluster."""
    names = [f"{kind}_{role}" for kind, fault in KINDS.items() for role in fault.roles
             if (cluster.hosts or not fault.needs_hosts) and (kind != "clock" or cluster.clock_library)]
    chosen = [name for name in names if (name in only.split(",") if only else name not in ON_REQUEST)]
    if not chosen:
        raise ValueError(f"--kinds names none of {', '.join(names)}")
    return chosen


def make(cluster, name, rng, restart_seconds, member=None):
    """A fault of this member, or of a random one with this role, and its length in seconds."""
    kind, role = name.rsplit("_", 1)
    is_kill = issubclass(KINDS[kind], Kill) and kind != "restart"
    candidates = [member for member in cluster.of_role(role) if member.alive]
    sample = cluster.history.samples[-1]
    # Ranks rather than idle workers.
    candidates = [member for member in candidates if sample.group_of(member.name) is not None] or candidates
    fault = KINDS[kind](cluster, member or rng.choice(candidates), rng)
    return fault, restart_seconds if is_kill else rng.uniform(*fault.seconds)


def inject(cluster, name, rng, restart_seconds, member=None):
    """Injects one fault and returns when it is over."""
    history = cluster.history
    fault, seconds = make(cluster, name, rng, restart_seconds, member)
    number = history.begin_fault(name, fault.member.name, seconds)
    try:
        fault.begin()
    except (OSError, subprocess.SubprocessError) as error:
        history.add("not_injected", kind=name, member=fault.member.name, error=str(error))
        return
    time.sleep(seconds)
    try:
        fault.end()
    finally:
        history.end_fault(number)


def schedule(kinds, rate, seconds, rng):
    """Times and kinds: `rate` faults per hour, each kind equally often, in a random order."""
    gap = HOUR / rate
    order = []
    for i in range(int(seconds / gap)):
        if not order:
            order = rng.sample(kinds, len(kinds))
        yield (i + rng.uniform(0.1, 0.4)) * gap, order.pop(), random.Random(rng.random())


def run_schedule(cluster, args, seconds):
    """Injects faults for the given time; one at a time unless `args.overlap`."""
    rng = random.Random(args.seed)
    begin = time.monotonic()
    threads = []
    for at, name, own in schedule(kinds_of(cluster, args.kinds), args.faults_per_hour, seconds, rng):
        time.sleep(max(0, begin + at - time.monotonic()))
        threads.append(threading.Thread(target=inject, args=(cluster, name, own, args.restart_s)))
        threads[-1].start()
        if not args.overlap:
            threads[-1].join()
    time.sleep(max(0, begin + seconds - time.monotonic()))
    for thread in threads:
        thread.join()
