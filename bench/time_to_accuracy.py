#!/usr/bin/env python3
"""Seconds of training until a test accuracy is reached, over slow links, beside other programs.

Each of two groups has a host of its own: a network namespace whose link has the given rate. A Cadre group has one
worker; an aggregator runs on each of the hosts, and the coordinator on the first. The run file is trained until it
reaches --target, without TLS. A program to compare with is a command that runs on both hosts at the same time; in it
{rank}, {world}, {master} and {iface} are replaced. Its first process prints one JSON line with --their-seconds.
Programs take turns, --rounds times. Prints one JSON line for each run, and a line with medians and ratios at the end:

    sudo bench/time_to_accuracy.py --rate 10mbit --target 0.9 \\
        --peer diloco="python3 localsgd.py --method diloco --groups {world} --group {rank} --master {master} ..."

Our seconds include the evaluations; `their` seconds are what the program reports.
Requires root; see bench/hosts.py.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import Hosts  # noqa: E402

GROUPS = ("group0", "group1")
COORDINATOR_PORT = 7000
START_SECONDS = 30
RUN_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "time_to_accuracy.textproto")


def cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


class Cluster:
    """Cadre's processes on the hosts. Ends them when it is closed."""

    def __init__(self, args, hosts, folder):
        self.args, self.hosts, self.folder = args, hosts, folder
        self.coordinator = f"{hosts.address(GROUPS[0])}:{COORDINATOR_PORT}"
        self.processes = []

    def __enter__(self):
        self._start(GROUPS[0], "coordinator", "cadre-coordinator", f"--listen={self.coordinator}",
                    f"--store={self.folder}/store.db", "--insecure")
        for number, host in enumerate(GROUPS):
            address = self.hosts.address(host)
            common = (f"--coordinator={self.coordinator}", "--insecure")
            self._start(host, f"aggregator-{number}", "cadre-aggregator", *common, f"--name=a{number}",
                        f"--listen={address}:7001", f"--advertise={address}:7001",
                        f"--data-dir={self.folder}/a{number}")
            self._start(host, f"worker-{number}", "cadre-worker", *common, f"--name=w{number}", "--threads=1",
                        f"--listen={address}:7002", f"--advertise={address}:7002", "--data-root=/")
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def train(self, run_file):
        """The summary of the run, after it has ended."""
        done = subprocess.run(
            self.hosts.command(GROUPS[0], [self.program("cadre"), "run", run_file, "--coordinator", self.coordinator,
                                           "--insecure", "--quiet", "-o", "json"]),
            capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"cadre run: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def program(self, name):
        return os.path.join(os.path.abspath(self.args.bin), name)

    def _start(self, host, name, program, *flags):
        log = open(os.path.join(self.folder, name + ".log"), "wb")
        self.processes.append(self.hosts.start(host, [self.program(program), *flags], stdout=log, stderr=log))


def await_members(cluster):
    """Waits until all members have joined."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        done = subprocess.run(
            cluster.hosts.command(GROUPS[0], [cluster.program("cadre"), "status", "--coordinator",
                                              cluster.coordinator, "--insecure", "--quiet", "-o", "json"]),
            capture_output=True, text=True, check=False)
        if done.returncode == 0:
            status = json.loads(done.stdout)
            if len(status.get("workers", [])) == len(GROUPS) and len(status.get("aggregators", [])) == len(GROUPS):
                return
        time.sleep(0.2)
    sys.exit("the members of the cluster have not joined; see the logs in " + cluster.folder)


def run_ours(args, hosts):
    folder = tempfile.mkdtemp(prefix="cadre-time-")
    run_file = os.path.join(folder, "run.textproto")
    with open(args.run, encoding="utf-8") as source:
        text, replaced = re.subn(r"test_accuracy: [0-9.]+", f"test_accuracy: {args.target}", source.read())
    if replaced != 1:
        sys.exit(f"{args.run}: the run must stop at one test_accuracy")
    with open(run_file, "w", encoding="utf-8") as target:
        target.write(text)
    try:
        with Cluster(args, hosts, folder) as cluster:
            await_members(cluster)
            summary = cluster.train(run_file)
        shutil.rmtree(folder)
    except SystemExit:
        print(f"logs: {folder}", file=sys.stderr)
        raise
    return {"seconds": summary["seconds"], "reached": summary["test_accuracy"] >= args.target,
            "accuracy": summary["test_accuracy"], "steps": summary["steps"],
            "traffic_factor": summary["traffic_factor"],
            "bytes": summary["bytes_across_groups"],
            "exposed_exchange_seconds": summary["exposed_exchange_seconds"]}


def run_peer(args, hosts, command):
    processes = []
    for rank, host in enumerate(GROUPS):
        words = command.format(rank=rank, world=len(GROUPS), master=hosts.address(GROUPS[0]), iface="eth0")
        processes.append(hosts.start(host, shlex.split(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outputs = [process.communicate() for process in processes]
    lines = [line for out, _ in outputs for line in out.splitlines() if line.startswith("{")]
    if any(process.returncode for process in processes) or not lines:
        sys.exit(f"{command}: failed\n" + "\n".join(err[-2000:] for _, err in outputs))
    values = json.loads(lines[-1])
    kept = ("accuracy", "reached", "steps", "sent_bytes", "torch")
    return {"seconds": values[args.their_seconds], **{name: values[name] for name in kept if name in values}}


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", default="100mbit", help="of the link of each host")
    p.add_argument("--run", default=RUN_FILE, help="run file of two groups of one worker")
    p.add_argument("--target", type=float, default=0.9, help="test accuracy, 0..1")
    p.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="repeatable")
    p.add_argument("--their-seconds", default="train_s", help="name of the number that peers print")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--bin", default="build/bin", help="folder of the programs")
    p.add_argument("--output", help="also append the lines to this file")
    return p.parse_args()


def main():
    args = parse()
    peers = dict(peer.split("=", 1) for peer in args.peer)
    seconds = {"cadre": [], **{name: [] for name in peers}}

    def report(line):
        text = json.dumps({"bench": "time_to_accuracy", "rate": args.rate, "target": args.target, **line})
        print(text, flush=True)
        if args.output:
            with open(args.output, "a", encoding="utf-8") as output:
                output.write(text + "\n")

    with Hosts(GROUPS, args.rate) as hosts:
        for round_number in range(args.rounds):
            for name in seconds:
                result = run_ours(args, hosts) if name == "cadre" else run_peer(args, hosts, peers[name])
                seconds[name].append(result["seconds"])
                report({"program": name, "round": round_number, **result})
    ours = statistics.median(seconds["cadre"])
    report({"cpu": cpu_model(), "cores": os.cpu_count(), "run": os.path.basename(args.run),
            "median_seconds": {name: round(statistics.median(times), 1) for name, times in seconds.items()},
            "speed_up_over": {name: round(statistics.median(times) / ours, 2)
                              for name, times in seconds.items() if name != "cadre"}})


if __name__ == "__main__":
    main()
