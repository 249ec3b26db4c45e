"""Emulates hosts by network namespaces, each connected by a link of a given rate, for benchmarks.

Every host is a namespace with one interface, connected to a bridge in another namespace. A token bucket at both
ends of the link limits its rate in each direction. The hosts are not reachable from outside. Requires root,
iproute2, and veth, bridge and sch_tbf in the kernel.

    with Hosts(2, "1gbit") as hosts:
        process = hosts.start(0, ["ping", "-c1", hosts.address(1)])
"""
import os
import subprocess

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
    """Namespaces that exist during a with statement; the caller ends the processes in them."""

    def __init__(self, count, rate):
        self.count = count
        self.rate = rate
        self.bits = bits_per_second(rate)
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
        return f"10.88.0.{host + 1}"

    def start(self, host, command, **options):
        return subprocess.Popen(["ip", "netns", "exec", self._name(host), *command], **options)

    def _name(self, host):
        return f"{self.prefix}-{host}"

    def _make(self):
        switch = self._add("switch")
        self._in(switch, "ip", "link", "add", "bridge", "type", "bridge")
        self._in(switch, "ip", "link", "set", "bridge", "up")
        for host in range(self.count):
            self._join(self._add(str(host)), host, switch)

    def _add(self, suffix):
        name = f"{self.prefix}-{suffix}"
        run("ip", "netns", "add", name)
        self.made.append(name)
        self._in(name, "ip", "link", "set", "lo", "up")
        return name

    def _join(self, name, host, switch):
        port = f"port{host}"
        run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port,
            "netns", switch)
        self._in(name, "ip", "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        self._in(name, "ip", "link", "set", "eth0", "up")
        self._in(switch, "ip", "link", "set", port, "master", "bridge", "up")
        self._shape(name, "eth0")
        self._shape(switch, port)

    def _shape(self, name, interface):
        burst = max(MIN_BURST, int(self.bits / 8 * BURST_SECONDS))
        self._in(name, "tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate",
                 f"{int(self.bits)}bit", "burst", str(burst), "latency", f"{QUEUE_MS}ms")

    def _in(self, name, *command):
        run("ip", "netns", "exec", name, *command)


def run(*command):
    subprocess.run(command, check=True)
