#!/usr/bin/env python3
"""Shows what a flood of calls does to a run.

Trains a run with a coordinator, two aggregators and two workers on this machine, and alternates --pairs times between
a flood from 64 connections (bench_flood) and a burner. The burner uses as much processor time as the flood did, in its
client, in the daemons beyond their work for the run, and in the kernel, so that it takes the same share of the cores
from the workers. Nothing else should run on the machine. Prints one JSON line for each part and, last, the verdict:

    bench/flood.py --bin build/bin --output flood.jsonl
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from keep_runs import AGGREGATORS, SPEC, WORKERS, start_daemons
from runner import Cluster, memory, parser, report

DAEMONS = ("coordinator", *AGGREGATORS)
LEASE_SECONDS = 10
TICKS = os.sysconf("SC_CLK_TCK")


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
    return report(args, "flood", part=name, seconds=round(seconds, 1), steps=steps,
                  steps_per_second=round(steps / seconds, 2), calls=used["calls"],
                  client_cpu_seconds=used["cpu_seconds"], daemon_cpu_seconds=round(cpu, 2),
                  cpu_seconds_beside_workers=round(busy - worker_cpu, 2), oldest_heartbeat_seconds=round(oldest, 2))


def step_of(cluster, run):
    return next(one["step"] for one in cluster.call("status", run, "--timeout", "20s")["runs"])


def start_run(cluster):
    """Starts everything and returns the run when it has trained for 100 steps."""
    with open(cluster.path("run.textproto"), "w") as file:
        spec = SPEC
        for old, new in (("stop { steps: 8 }", "stop { steps: 100000000 }"), ("every_steps: 2", "every_steps: 20"),
                         ("group: 32", "group: 512")):
            spec = spec.replace(old, new)
        file.write(spec)
    start_daemons(cluster, keep=16)
    for name in WORKERS:
        cluster.start_worker(name)
    run = cluster.call("run", "--detach", cluster.path("run.textproto"))["run"]
    while step_of(cluster, run) < 100:
        time.sleep(0.2)
    return run


def main():
    p = parser(__doc__)
    p.add_argument("--seconds", type=float, default=30, help="length of each part")
    p.add_argument("--pairs", type=int, default=3, help="floods, each followed by a burner")
    p.add_argument("--burner-threads", type=int, default=64, help="as many as the flood has connections")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder, Cluster(args.bin, folder) as cluster:
        run = start_run(cluster)
        step, cpu = step_of(cluster, run), cpu_seconds(cluster)
        time.sleep(5)
        cpu_of_step = (cpu_seconds(cluster) - cpu) / (step_of(cluster, run) - step)
        aggregator = cluster.call("members")["aggregators"][0]["member"]["address"]
        floods, burners = [], []
        for _ in range(args.pairs):
            floods.append(part(cluster, args, run, "flood", f"--coordinator={cluster.coordinator}",
                               f"--aggregator={aggregator}"))
            used = floods[-1]["cpu_seconds_beside_workers"] - cpu_of_step * floods[-1]["steps"]
            burners.append(part(cluster, args, run, "burner", f"--burn_cores={used / floods[-1]['seconds']}",
                                f"--connections={args.burner_threads}"))
        resident = {name: memory(cluster.processes[name].pid, "VmHWM") >> 20 for name in DAEMONS}

    flood, burner = (statistics.median_high(one["steps_per_second"] for one in parts) for parts in (floods, burners))
    ratio = round(burner / flood, 3)
    oldest = round(max(one["oldest_heartbeat_seconds"] for one in floods) / LEASE_SECONDS, 3)
    passed = ratio <= 1.1 and oldest <= 0.5 and max(resident.values()) < 256
    report(args, "flood", verdict=True, burner_threads=args.burner_threads, cores=os.cpu_count(), step_time_ratio=ratio,
           oldest_heartbeat_of_lease=oldest, peak_mib=resident, passed=passed)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
