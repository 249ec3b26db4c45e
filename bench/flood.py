#!/usr/bin/env python3
"""Shows what a flood of calls does to a run.

Trains a run with a coordinator, two aggregators and two workers on this machine, and alternates --pairs times between
a flood from 64 connections (bench_flood) and a burner. The burner uses as much processor time as the flood did, in its
client, in the daemons beyond their work for the run, and in the kernel, so that it takes the same share of the cores
from the workers. Nothing else should run on the machine. Prints one JSON line for each part and, last, the verdict:

    bench/flood.py --bin build/bin --output flood.jsonl
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from keep_runs import AGGREGATORS, Cluster, SPEC

DAEMONS = ("coordinator", *AGGREGATORS)
WORKERS = ("w0", "w1")
TICKS = os.sysconf("SC_CLK_TCK")


def status_of(process, field):
    for line in open(f"/proc/{process.pid}/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def cpu_seconds(cluster, names=DAEMONS):
    total = 0
    for name in names:
        fields = open(f"/proc/{cluster.processes[name].pid}/stat").read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def busy_seconds():
    """Busy seconds of all cores, with interrupts, and without this program and the ones that it has called."""
    user, nice, system, _, _, irq, softirq = map(int, open("/proc/stat").readline().split()[1:8])
    own = os.times()
    called = own.user + own.system + own.children_user + own.children_system
    return (user + nice + system + irq + softirq) / TICKS - called


def cpu_model():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def part(cluster, args, run, name, *flags):
    """Runs bench_flood and samples the cluster meanwhile."""
    begin, step = time.monotonic(), step_of(cluster, run)
    cpu, worker_cpu, busy = cpu_seconds(cluster), cpu_seconds(cluster, WORKERS), busy_seconds()
    client = subprocess.Popen([os.path.join(args.bin, "bench_flood"), f"--seconds={args.seconds}", *flags],
                              stdout=subprocess.PIPE)
    oldest = 0
    while client.poll() is None:
        members = cluster.call("members", "--timeout", "20s")
        ages = [one["heartbeat_age_seconds"] for one in members["workers"] if not one["name"].startswith("flood")]
        ages += [one["member"]["heartbeat_age_seconds"] for one in members["aggregators"]]
        oldest = max(oldest, *ages)
        time.sleep(0.5)
    seconds = time.monotonic() - begin
    cpu, worker_cpu = cpu_seconds(cluster) - cpu, cpu_seconds(cluster, WORKERS) - worker_cpu
    used = json.loads(client.stdout.read())
    # The client has ended, so it counts as called.
    busy = busy_seconds() - busy + used["cpu_seconds"]
    steps = step_of(cluster, run) - step
    return {"bench": "flood", "part": name, "seconds": round(seconds, 1), "steps": steps,
            "steps_per_second": round(steps / seconds, 2), "calls": used["calls"],
            "client_cpu_seconds": used["cpu_seconds"], "daemon_cpu_seconds": round(cpu, 2),
            "cpu_seconds_beside_workers": round(busy - worker_cpu, 2), "oldest_heartbeat_seconds": round(oldest, 2)}


def step_of(cluster, run):
    return next(one["step"] for one in cluster.call("status", run, "--timeout", "20s")["runs"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/bin", help="folder of the programs")
    parser.add_argument("--seconds", type=float, default=30, help="length of each part")
    parser.add_argument("--pairs", type=int, default=3, help="floods, each followed by a burner")
    parser.add_argument("--burner-threads", type=int, default=64, help="as many as the flood has connections")
    parser.add_argument("--output", help="also write the lines to this file")
    args = parser.parse_args()
    args.keep, args.flags = 16, "--insecure"
    lease_seconds = 10
    lines = []

    def report(line):
        lines.append(json.dumps(line))
        print(lines[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(args, folder)
        try:
            with open(cluster.path("run.textproto"), "w") as file:
                spec = SPEC
                for old, new in (("stop { steps: 8 }", "stop { steps: 100000000 }"),
                                 ("every_steps: 2", "every_steps: 20"), ("group: 32", "group: 512")):
                    spec = spec.replace(old, new)
                file.write(spec)
            cluster.start_coordinator()
            cluster.start_aggregators()
            for name in WORKERS:
                cluster.start_worker(name)
            run = cluster.call("run", "--detach", cluster.path("run.textproto"))["run"]
            while step_of(cluster, run) < 100:
                time.sleep(0.2)
            step, cpu = step_of(cluster, run), cpu_seconds(cluster)
            time.sleep(5)
            cpu_of_step = (cpu_seconds(cluster) - cpu) / (step_of(cluster, run) - step)
            aggregator = cluster.call("members")["aggregators"][0]["member"]["address"]
            floods, burners = [], []
            for _ in range(args.pairs):
                floods.append(part(cluster, args, run, "flood", f"--coordinator=127.0.0.1:{cluster.port}",
                                   f"--aggregator={aggregator}"))
                report(floods[-1])
                used = floods[-1]["cpu_seconds_beside_workers"] - cpu_of_step * floods[-1]["steps"]
                cores = used / floods[-1]["seconds"]
                burners.append(part(cluster, args, run, "burner", f"--burn_cores={cores}",
                                    f"--connections={args.burner_threads}"))
                report(burners[-1])
            resident = {name: status_of(cluster.processes[name], "VmHWM") // 1024 for name in DAEMONS}
        finally:
            cluster.end([name for name, process in cluster.processes.items() if process.poll() is None])

    def median(values):
        return sorted(values)[len(values) // 2]

    oldest = max(one["oldest_heartbeat_seconds"] for one in floods)
    rate = {name: median([one["steps_per_second"] for one in parts])
            for name, parts in (("flood", floods), ("burner", burners))}
    verdict = {"bench": "flood", "verdict": True, "burner_threads": args.burner_threads, "cpu": cpu_model(),
               "cores": os.cpu_count(), "step_time_ratio": round(rate["burner"] / rate["flood"], 3),
               "oldest_heartbeat_of_lease": round(oldest / lease_seconds, 3),
               "peak_mib": resident}
    verdict["passed"] = (verdict["step_time_ratio"] <= 1.1 and verdict["oldest_heartbeat_of_lease"] <= 0.5 and
                         max(resident.values()) < 256)
    report(verdict)
    if args.output:
        with open(args.output, "w") as file:
            file.write("\n".join(lines) + "\n")
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
