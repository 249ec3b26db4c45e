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
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from hosts import Hosts
from runner import Cluster, json_lines, parser, report

GROUPS = ("group0", "group1")
START_SECONDS = 120
FOLDER = os.path.dirname(os.path.abspath(__file__))
RUN_FILE = os.path.join(FOLDER, "time_to_accuracy.textproto")


def native_worker(_args, cluster, name, host, _seed):
    return cluster.worker(name, "--data-root=/", host=host)


def pytorch_program(args, cluster, name, _host, seed):
    stop = ("--steps", str(args.steps)) if args.steps else ("--target", str(args.target))
    return [sys.executable, os.path.join(FOLDER, "time_to_accuracy_pytorch.py"), "--coordinator", cluster.coordinator,
            "--name", name, "--seed", str(seed), "--overlap", str(args.overlap), *stop]


def joining_program(*args):
    return [*pytorch_program(*args), "--join"]


# The members of the two groups, by the name of the contender; and what is added to the run file, if there is one.
MEMBERS = {"cadre": ((native_worker, native_worker), ""),
           "cadre-bf16": ((native_worker, native_worker), "precision: BF16\n"),
           "cadre-pytorch": ((pytorch_program, pytorch_program), None),
           "cadre-mixed": ((native_worker, joining_program), "")}


def train(args, cluster, members, seed, run_file):
    """The run's status after it has ended. Each of `members` makes the command of a group's only member, which submits
    the run if there is no `run_file`."""
    cluster.start_coordinator(host=GROUPS[0])
    for number, host in enumerate(GROUPS):
        cluster.start_aggregator(f"a{number}", host=host)
    if run_file:
        cluster.call("run", run_file, "--detach")
    for number, (host, member) in enumerate(zip(GROUPS, members)):
        cluster.start(f"w{number}", member(args, cluster, f"w{number}", host, seed), host)
    end = time.monotonic() + START_SECONDS
    while not (runs := cluster.call("runs")["runs"]):
        if time.monotonic() > end:
            raise RuntimeError("the run was not submitted")
        time.sleep(0.2)
    return cluster.call("wait", runs[0]["run"])


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
        with Cluster(args.bin, folder, hosts) as cluster:
            run = train(args, cluster, members, seed, run_file)
    except RuntimeError as error:
        sys.exit(f"{error}\nlogs: {folder}")
    shutil.rmtree(folder)
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
    lines = [line for out, _ in outputs for line in json_lines(out)]
    if any(process.returncode for process in processes) or not lines:
        sys.exit(f"{command}: failed\n" + "\n".join(err[-2000:] for _, err in outputs))
    kept = ("accuracy", "reached", "steps", "sent_bytes", "torch")
    return {"training_seconds": lines[-1][seconds], **{name: lines[-1][name] for name in kept if name in lines[-1]}}


def parse():
    p = parser(__doc__)
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
    return p.parse_args()


def main():
    args = parse()
    peers = dict(peer.split("=", 1) for peer in args.peer)
    seconds = {name: [] for name in (*args.members, *peers)}
    accuracies = {name: [] for name in args.members}

    about = {"rate": args.rate, "target": args.target}
    with Hosts(GROUPS, args.rate) as hosts:
        for round_number in range(args.rounds):
            for name in seconds:
                seed = round_number + 1
                result = (run_peer(hosts, peers[name], args.their_seconds, seed) if name in peers
                          else run_ours(args, hosts, name, seed))
                seconds[name].append(result["training_seconds"])
                if name in accuracies:
                    accuracies[name].append(result["accuracy"])
                report(args, "time_to_accuracy", **about, program=name, round=round_number, **result)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    report(args, "time_to_accuracy", **about, cores=os.cpu_count(), run=os.path.basename(args.run),
           median_training_seconds={name: round(median, 1) for name, median in medians.items()},
           accuracy={name: [round(f(values), 4) for f in (statistics.mean, min, max)]
                     for name, values in accuracies.items()},
           **{f"speed_up_of_{ours}_over": {name: round(medians[name] / medians[ours], 2) for name in peers}
              for ours in args.members})


if __name__ == "__main__":
    main()
