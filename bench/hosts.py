"""Hosts, emulated by network namespaces, and groups of ranks on them."""
import json
import os
import subprocess
import sys

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
# A bucket holds the bytes of this time, and at least a few packets.
BURST_SECONDS = 0.002
MIN_BURST = 65536
QUEUE_MS = 50


def bits_per_second(rate):
    """'100mbit' -> 1e8."""
    for unit, factor in UNITS.items():
        if rate.endswith(unit) and rate[:-len(unit)].isdigit():
            return int(rate[:-len(unit)]) * factor
    raise ValueError(f"a rate must be written as 100mbit or 1gbit, not '{rate}'")


class Hosts:
    """Named hosts that exist during a with statement; the caller ends the processes in them.

    Every host has one interface, connected to a bridge in another namespace. A token bucket at both ends of the
    link limits its rate in each direction; packets wait there for at most `queue_ms`. The hosts are not reachable from
    outside. Requires root, iproute2, and veth, bridge and sch_tbf in the kernel.
    """

    def __init__(self, names, rate, queue_ms=QUEUE_MS):
        self.names = list(names)
        self.rate = rate
        self.queue_ms = queue_ms
        self.prefix = f"cadre{os.getpid()}"
        self.made = []

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in reversed(self.made):
            subprocess.run(["ip", "netns", "del", name], check=False)
        self.made = []

    def address(self, host):
        return f"10.88.0.{self.names.index(host) + 1}"

    def command(self, host, command):
        """The command that runs `command` on the host, with the same process id."""
        return ["ip", "netns", "exec", self._name(host), *command]

    def start(self, host, command, **options):
        return subprocess.Popen(self.command(host, command), **options)

    def set_rate(self, host, rate):
        """Limits the rate of the host's link in both directions."""
        bits = bits_per_second(rate)
        burst = max(MIN_BURST, int(bits / 8 * BURST_SECONDS))
        for namespace, interface in ((host, "eth0"), ("switch", self._port(host))):
            run(f"tc -n {self._name(namespace)} qdisc replace dev {interface} root tbf rate {int(bits)}bit"
                f" burst {burst} latency {self.queue_ms}ms")

    def set_link(self, host, state):
        """Connects ('up') or disconnects ('down') the host."""
        run(f"ip -n {self._name('switch')} link set {self._port(host)} {state}")

    def set_route(self, host, other, state):
        """Whether packets from the host reach the other one ('up') or are dropped ('down'); the opposite direction
        stays as it is."""
        verb = "add" if state == "down" else "del"
        run(f"ip -n {self._name(host)} route {verb} blackhole {self.address(other)}/32")

    def _name(self, suffix):
        return f"{self.prefix}-{suffix}"

    def _port(self, host):
        return f"port{self.names.index(host)}"

    def _make(self):
        switch = self._add("switch")
        run(f"ip -n {switch} link add bridge type bridge")
        run(f"ip -n {switch} link set bridge up")
        for host in self.names:
            name, port = self._add(host), self._port(host)
            run(f"ip link add eth0 netns {name} type veth peer name {port} netns {switch}")
            run(f"ip -n {name} address add {self.address(host)}/24 dev eth0")
            run(f"ip -n {name} link set eth0 up")
            run(f"ip -n {switch} link set {port} master bridge up")
            self.set_rate(host, self.rate)

    def _add(self, suffix):
        name = self._name(suffix)
        run(f"ip netns add {name}")
        self.made.append(name)
        run(f"ip -n {name} link set lo up")
        return name


def run(command):
    subprocess.run(command.split(), check=True)


def run_ranks(ranks, rate, command, queue_ms=QUEUE_MS, pinned=False):
    """Runs a program as each rank of a group, each on a host of its own and, if `pinned`, on a core. Yields the JSON
    lines of rank 0; ends this program if a rank fails."""
    names = [str(rank) for rank in range(ranks)]
    with Hosts(names, rate, queue_ms) as hosts:
        peers = ",".join(f"{hosts.address(name)}:7100" for name in names)
        processes = []
        for name in names:
            words = [*(("taskset", "-c", name) if pinned else ()), *map(str, command), "--rank", name, "--peers", peers]
            out = subprocess.PIPE if name == "0" else subprocess.DEVNULL
            processes.append(hosts.start(name, words, stdout=out, text=True))
        try:
            yield from map(json.loads, processes[0].stdout)
        finally:
            if any([process.wait() for process in processes]):
                sys.exit(f"a group of {ranks} ranks failed")
