#!/usr/bin/env python3
"""Seconds of training until a test accuracy is reached, over slow links, beside other programs.

Each of two groups has a host of its own: a network namespace whose link has the given rate. A Cadre group has one
worker, or is a PyTorch program of one process (time_to_accuracy_pytorch.py); cadre-mixed has one group of each kind. An
aggregator runs on each of the hosts, and the coordinator on the first. The run file is trained until it reaches
--target, or for --steps, without TLS. A program to compare with is a command that runs on both hosts at the same time;
in it {rank}, {world}, {master}, {iface} and {seed} are replaced. Its first process prints one JSON line with
--their-seconds. Programs take turns, --rounds times, each time with another seed. Prints one JSON line for each run,
and a line with medians, ratios and accuracies (mean, minimum, maximum) at the end:

    sudo bench/time_to_accuracy.py --rate 10mbit --target 0.9 --members cadre cadre-pytorch \\
        --peer diloco="python3 localsgd.py --method diloco --groups {world} --group {rank} --seed {seed} ..."

`training_seconds` are compared, which exclude evaluations: of Cadre, `seconds` minus `evaluation_seconds`, the sum of
the times of the slowest group; of other programs, --their-seconds, a clock that must stop during evaluations, as that
of a peer that evaluates outside of its training loop does. `hidden_exchange_share` is 1 - exposed_exchange_seconds /
transfer_seconds, at least 0 (docs/design/averaging.md, "Rounds that overlap steps").
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
from hosts import Hosts, cpu_model  # noqa: E402

GROUPS = ("group0", "group1")
COORDINATOR_PORT = 7000
START_SECONDS = 120
FOLDER = os.path.dirname(os.path.abspath(__file__))
RUN_FILE = os.path.join(FOLDER, "time_to_accuracy.textproto")


def native_worker(args, coordinator, name, address, _):
    return [program(args, "cadre-worker"), f"--coordinator={coordinator}", "--insecure", f"--name={name}",
            "--threads=1", f"--listen={address}:7002", f"--advertise={address}:7002", "--data-root=/"]


def pytorch_program(args, coordinator, name, _, seed):
    return [sys.executable, os.path.join(FOLDER, "time_to_accuracy_pytorch.py"), "--coordinator", coordinator,
            "--name", name, "--seed", str(seed), "--overlap", str(args.overlap), *(("--steps", str(args.steps)) if args.steps else
                                                   ("--target", str(args.target)))]


def joining_program(*args):
    return [*pytorch_program(*args), "--join"]


# The members of the two groups, by the name of the contender; and what is added to the run file, if there is one.
MEMBERS = {"cadre": ((native_worker, native_worker), ""),
           "cadre-bf16": ((native_worker, native_worker), "precision: BF16\n"),
           "cadre-pytorch": ((pytorch_program, pytorch_program), None),
           "cadre-mixed": ((native_worker, joining_program), "")}


def program(args, name):
    return os.path.join(os.path.abspath(args.bin), name)


class Cluster:
    """Cadre's processes on the hosts. Ends them when it is closed."""

    def __init__(self, args, hosts, folder):
        self.args, self.hosts, self.folder = args, hosts, folder
        self.coordinator = f"{hosts.address(GROUPS[0])}:{COORDINATOR_PORT}"
        self.processes = []

    def __enter__(self):
        self._start(GROUPS[0], "coordinator", [program(self.args, "cadre-coordinator"), f"--listen={self.coordinator}",
                                               f"--store={self.folder}/store.db", "--insecure"])
        for number, host in enumerate(GROUPS):
            address = f"{self.hosts.address(host)}:7001"
            self._start(host, f"aggregator-{number}",
                        [program(self.args, "cadre-aggregator"), f"--coordinator={self.coordinator}", "--insecure",
                         f"--name=a{number}", f"--listen={address}", f"--advertise={address}",
                         f"--data-dir={self.folder}/a{number}"])
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def train(self, members, seed, run_file):
        """The run's status after it has ended. Each of `members` makes the command of a group's only member, which
        submits the run if there is no `run_file`."""
        if run_file:
            self._cadre("run", run_file, "--detach")
        for number, (host, member) in enumerate(zip(GROUPS, members)):
            command = member(self.args, self.coordinator, f"w{number}", self.hosts.address(host), seed)
            self._start(host, f"w{number}", command)
        end = time.monotonic() + START_SECONDS
        while not (runs := self._cadre("runs")["runs"]):
            if time.monotonic() > end:
                sys.exit("the run was not submitted")
            time.sleep(0.2)
        return self._cadre("wait", runs[0]["run"])

    def _cadre(self, *words):
        flags = ("--coordinator", self.coordinator, "--insecure", "--quiet", "-o", "json")
        done = subprocess.run(self.hosts.command(GROUPS[0], [program(self.args, "cadre"), *words, *flags]),
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"cadre {words[0]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def _start(self, host, name, command):
        log = open(os.path.join(self.folder, name + ".log"), "wb")
        self.processes.append(self.hosts.start(host, command, stdout=log, stderr=log))


def run_ours(args, hosts, kind, seed):
    folder = tempfile.mkdtemp(prefix="cadre-time-")
    run_file = None
    members, more = MEMBERS[kind]
    if more is not None:
        run_file = os.path.join(folder, "run.textproto")
        with open(args.run, encoding="utf-8") as source:
            text = source.read()
        stop = ((r"stop \{.*\}", f"stop {{ steps: {args.steps} }}") if args.steps else
                (r"test_accuracy: [0-9.]+", f"test_accuracy: {args.target}"))
        overlap = (r"overlap \{.*\}", f"overlap {{ steps: {args.overlap} }}")
        for field, value in (stop, overlap, (r"seed: [0-9]+", f"seed: {seed}")):
            text, replaced = re.subn(rf"\b{field}", value, text)
            if replaced != 1:
                sys.exit(f"{args.run}: the run must have one {field}")
        with open(run_file, "w", encoding="utf-8") as target:
            target.write(text + more)
    try:
        with Cluster(args, hosts, folder) as cluster:
            run = cluster.train(members, seed, run_file)
        shutil.rmtree(folder)
    except SystemExit:
        print(f"logs: {folder}", file=sys.stderr)
        raise
    accuracy = run["test"]["accuracy"]
    return {"training_seconds": run["seconds"] - run["evaluation_seconds"], "reached": accuracy >= args.target,
            "accuracy": accuracy, "steps": run["step"], "bytes": run["bytes_across_groups"],
            "overlap": args.overlap,
            **{name: run[name] for name in ("seconds", "evaluation_seconds", "traffic_factor",
                                            "exposed_exchange_seconds", "transfer_seconds")},
            "hidden_exchange_share": max(0, 1 - run["exposed_exchange_seconds"] / run["transfer_seconds"])}


def run_peer(hosts, command, seconds, seed):
    processes = []
    for rank, host in enumerate(GROUPS):
        words = command.format(rank=rank, world=len(GROUPS), master=hosts.address(GROUPS[0]), iface="eth0", seed=seed)
        processes.append(hosts.start(host, shlex.split(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     text=True))
    outputs = [process.communicate() for process in processes]
    lines = [line for out, _ in outputs for line in out.splitlines() if line.startswith("{")]
    if any(process.returncode for process in processes) or not lines:
        sys.exit(f"{command}: failed\n" + "\n".join(err[-2000:] for _, err in outputs))
    values = json.loads(lines[-1])
    kept = ("accuracy", "reached", "steps", "sent_bytes", "torch")
    return {"training_seconds": values[seconds], **{name: values[name] for name in kept if name in values}}


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", default="100mbit", help="of the link of each host")
    p.add_argument("--run", default=RUN_FILE, help="run file of two groups of one worker")
    p.add_argument("--target", type=float, default=0.9, help="test accuracy, 0..1")
    p.add_argument("--steps", type=int, help="train for so many steps, whatever the accuracy")
    p.add_argument("--overlap", type=int, default=32, help="steps that each exchange of Cadre overlaps")
    p.add_argument("--members", choices=MEMBERS, nargs="+", default=["cadre"],
                   help="kinds of groups of Cadre to measure: native in fp32 or bf16, PyTorch programs, or both")
    p.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="repeatable")
    p.add_argument("--their-seconds", default="train_s", help="number that peers print, without evaluations")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--bin", default="build/bin", help="folder of the programs")
    p.add_argument("--output", help="also append the lines to this file")
    return p.parse_args()


def main():
    args = parse()
    peers = dict(peer.split("=", 1) for peer in args.peer)
    seconds = {name: [] for name in (*args.members, *peers)}
    accuracies = {name: [] for name in args.members}

    def report(line):
        text = json.dumps({"bench": "time_to_accuracy", "rate": args.rate, "target": args.target, **line})
        print(text, flush=True)
        if args.output:
            with open(args.output, "a", encoding="utf-8") as output:
                output.write(text + "\n")

    with Hosts(GROUPS, args.rate) as hosts:
        for round_number in range(args.rounds):
            for name in seconds:
                seed = round_number + 1
                result = (run_peer(hosts, peers[name], args.their_seconds, seed) if name in peers
                          else run_ours(args, hosts, name, seed))
                seconds[name].append(result["training_seconds"])
                if name in accuracies:
                    accuracies[name].append(result["accuracy"])
                report({"program": name, "round": round_number, **result})
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    report({"cpu": cpu_model(), "cores": os.cpu_count(), "run": os.path.basename(args.run),
            "median_training_seconds": {name: round(median, 1) for name, median in medians.items()},
            "accuracy": {name: [round(f(values), 4) for f in (statistics.mean, min, max)]
                         for name, values in accuracies.items()},
            **{f"speed_up_of_{ours}_over": {name: round(medians[name] / medians[ours], 2) for name in peers}
               for ours in args.members}})


if __name__ == "__main__":
    main()
