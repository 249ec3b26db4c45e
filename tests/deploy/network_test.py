#!/usr/bin/env python3
"""Runs whose workers nothing can connect to: behind NAT, and behind an HTTP proxy that is the only way out.

Three network namespaces: the cluster (coordinator and aggregator), a router, and the site (workers and operator). The
cluster has no route to the site. Requires root, nft and tinyproxy.

usage: network_test.py PROGRAMS
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import tools

PROGRAMS = pathlib.Path(sys.argv.pop(1)).resolve()
COORDINATOR = "10.77.0.1:7000"
PROXY = "http://192.168.77.254:3128"
PATIENCE = 60
RUN = """
name: "nat"
model {
  input { channels: 1 height: 8 width: 8 }
  layer { name: "fc1" fully_connected { out_features: 64 } }
  layer { name: "relu1" relu {} }
  layer { name: "fc2" fully_connected { out_features: 4 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
data { synthetic { train_samples: 256 test_samples: 64 classes: 4 } }
batch_per_group: 16
optimizer { sgd {} }
schedule { base_rate: 0.01 }
averaging { every_steps: 4 }
cluster { groups: 2 ranks_per_group: 1 }
stop { steps: 24 }
"""


def run(*command, check=True, **environment):
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, **environment},
    )
    if check and result.returncode != 0:
        raise AssertionError(f"{command}: {result.stdout}{result.stderr}")
    return result


class NetworkTest(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0:
            raise unittest.SkipTest("network namespaces require root")
        os.environ["PATH"] += ":/usr/sbin:/sbin"
        for tool in ("ip", "nft", "tinyproxy"):
            if not shutil.which(tool):
                tools.missing(f"{tool} is not installed; `deploy/setup.sh test` installs it")
        self.names = {name: f"cadre-{os.getpid()}-{name}" for name in ("cluster", "router", "site")}
        try:
            self.make_namespaces()
        except AssertionError as error:
            # Containers often lack the permission, or the kernel a module.
            if re.search("not permitted|not supported|Read-only file system|Unknown device type", str(error)):
                raise unittest.SkipTest(f"no network namespaces here: {error}") from None
            raise
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.certificates()

    def make_namespaces(self):
        for name in self.names.values():
            run("ip", "netns", "add", name)
            self.addCleanup(run, "ip", "netns", "del", name)
        self.link("cluster", "10.77.0.1/24", "10.77.0.254/24")
        self.link("site", "192.168.77.2/24", "192.168.77.254/24")
        self.inside("site", "ip", "route", "add", "default", "via", "192.168.77.254")
        self.inside("router", "nft", "add table ip nat; add chain ip nat out "
                    "{ type nat hook postrouting priority 100 ; }; add rule ip nat out masquerade")
        self.forward(False)

    def forward(self, on):
        self.inside("router", "sh", "-c", f"echo {int(on)} > /proc/sys/net/ipv4/ip_forward")

    def inside(self, name, *command, **options):
        return run("ip", "netns", "exec", self.names[name], *command, **options)

    def link(self, name, address, router_address):
        """Connects a namespace with the router."""
        one, two = f"c{os.getpid()}{name[0]}", f"r{os.getpid()}{name[0]}"
        run("ip", "link", "add", one, "netns", self.names[name], "type", "veth",
            "peer", "name", two, "netns", self.names["router"])
        for namespace, device, local in ((name, one, address), ("router", two, router_address)):
            self.inside(namespace, "ip", "link", "set", "lo", "up")
            self.inside(namespace, "ip", "address", "add", local, "dev", device)
            self.inside(namespace, "ip", "link", "set", device, "up")

    def certificates(self):
        cadre = PROGRAMS / "cadre"
        authority = ("--ca", self.folder / "ca")
        run(cadre, "certs", "init", *authority)
        for role, name in (("coordinator", "main"), ("aggregator", "a0"), ("worker", "w0"), ("worker", "w1"),
                           ("operator", "me")):
            run(cadre, "certs", "issue", role, name, *authority, "--out", self.folder / name)

    def start(self, namespace, name, *command, **environment):
        """Starts a daemon of the namespace, which ends with the test."""
        log = (self.folder / f"{name}.log").open("w")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[namespace], *map(str, command)], stdout=log, stderr=log,
            env={**os.environ, **environment}, start_new_session=True,
        )
        self.addCleanup(self.stop, process)

    def stop(self, process):
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def logs(self):
        return "".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))

    def cadre(self, *arguments, check=True, **environment):
        """The command line, at the site."""
        result = self.inside("site", PROGRAMS / "cadre", *arguments, "--coordinator", COORDINATOR,
                             "--tls", self.folder / "me", check=False, **environment)
        if check and result.returncode != 0:
            raise AssertionError(f"{arguments}: {result.stdout}{result.stderr}{self.logs()}")
        return result

    def train(self, **environment):
        """Runs to the end with two workers of the site, which listen on loopback."""
        self.start("cluster", "coordinator", PROGRAMS / "cadre-coordinator", f"--listen={COORDINATOR}",
                   f"--store={self.folder}/coordinator.db", f"--tls={self.folder}/main")
        self.start("cluster", "aggregator", PROGRAMS / "cadre-aggregator", f"--coordinator={COORDINATOR}",
                   "--listen=10.77.0.1:7001", f"--data-dir={self.folder}/a0.data", "--name=a0",
                   f"--tls={self.folder}/a0")
        for worker in ("w0", "w1"):
            self.start("site", worker, PROGRAMS / "cadre-worker", f"--coordinator={COORDINATOR}",
                       f"--tls={self.folder}/{worker}", **environment)
        (self.folder / "run.textproto").write_text(RUN)
        deadline = time.monotonic() + PATIENCE
        while self.cadre("status", check=False, **environment).returncode != 0:
            self.assertLess(time.monotonic(), deadline, self.logs())
        out = self.cadre("run", self.folder / "run.textproto", "-o", "json", **environment).stdout
        self.assertIn('"state":"done"', out.replace(" ", ""))
        # The cluster could not have connected to a worker.
        refused = self.inside("cluster", "ip", "route", "get", "192.168.77.2", check=False)
        self.assertIn("unreachable", refused.stderr)

    def test_behind_nat(self):
        self.forward(True)
        self.train()

    def test_proxy_on_purpose(self):
        configuration = self.folder / "tinyproxy.conf"
        configuration.write_text("Port 3128\nListen 192.168.77.254\nTimeout 600\nMaxClients 100\nConnectPort 7000\n"
                                 "ConnectPort 7001\nDisableViaHeader Yes\nLogLevel Connect\n")
        self.start("router", "tinyproxy", "tinyproxy", "-d", "-c", configuration)
        failed = self.cadre("status", check=False, CADRE_PROXY="", http_proxy=PROXY)
        self.assertEqual(failed.returncode, 4, failed.stderr)
        self.train(CADRE_PROXY=PROXY)
        self.assertIn("CONNECT 10.77.0.1:7001", (self.folder / "tinyproxy.log").read_text())

    def test_proxy_that_is_not_there_is_named(self):
        failed = self.cadre("status", check=False, CADRE_PROXY="http://user:secret@192.168.77.254:3129")
        self.assertEqual(failed.returncode, 4, failed.stderr)
        self.assertIn("through the proxy 192.168.77.254:3129 of CADRE_PROXY", failed.stderr)
        self.assertNotIn("secret", failed.stderr)


if __name__ == "__main__":
    unittest.main()
