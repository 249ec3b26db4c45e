#!/usr/bin/env python3
"""Shows that old runs fill no disk and delay no start.

Trains small runs one after the other with a coordinator, two aggregators and two workers on this machine that keep
few ended runs. After every --every runs it adds up the bytes of the coordinator's store and of the aggregators'
folders. Growth counts from --warm-up runs on, when the kept runs and SQLite's write-ahead log, which starts again from
its beginning at 4 MiB, have their sizes. At the end it kills and restarts coordinator and aggregators, and measures
the time until the aggregators have joined again. Prints one JSON line for each measurement and, last, the verdict:

    bench/keep_runs.py --bin build/bin --output keep-runs.jsonl
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

SPEC = """
name: "small"
model {
  input { channels: 1 height: 8 width: 8 }
  layer { name: "conv1" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "relu1" relu {} }
  layer { name: "pool1" max_pool { kernel: 2 } }
  layer { name: "fc1" fully_connected { out_features: 1024 } }
  layer { name: "relu2" relu {} }
  layer { name: "fc2" fully_connected { out_features: 4 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
data { synthetic { train_samples: 512 test_samples: 64 classes: 4 noise: 1.5 } }
batch_per_group: 32
optimizer { sgd { momentum: 0.9 } }
schedule { base_rate: 0.02 }
averaging { every_steps: 2 }
cluster { groups: 2 ranks_per_group: 1 aggregators: 2 }
stop { steps: 8 }
evaluation { every_epochs: 50 }
"""
AGGREGATORS = ("a0", "a1")


class Cluster:
    def __init__(self, args, folder):
        self.args, self.folder, self.processes, self.port = args, folder, {}, 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, name, program, *flags):
        log = open(self.path(name + ".log"), "ab")
        command = [os.path.join(self.args.bin, program), *flags, *self.args.flags.split()]
        self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def start_coordinator(self):
        port_file = self.path("port")
        if os.path.exists(port_file):
            os.remove(port_file)
        self.start("coordinator", "cadre-coordinator", f"--listen=127.0.0.1:{self.port}", f"--port-file={port_file}",
                   f"--store={self.path('store.db')}", f"--keep-closed-runs={self.args.keep}")
        while not os.path.exists(port_file) or not open(port_file).read().strip():
            if self.processes["coordinator"].poll() is not None:
                sys.exit("the coordinator ended: " + open(self.path("coordinator.log")).read()[-500:])
            time.sleep(0.01)
        self.port = int(open(port_file).read())

    def start_aggregators(self):
        for name in AGGREGATORS:
            os.makedirs(self.path(name), exist_ok=True)
            self.start(name, "cadre-aggregator", "--listen=127.0.0.1:0", f"--coordinator=127.0.0.1:{self.port}",
                       f"--data-dir={self.path(name)}", f"--name={name}", f"--keep-closed-runs={self.args.keep}")

    def start_worker(self, name):
        self.start(name, "cadre-worker", "--listen=127.0.0.1:0", f"--coordinator=127.0.0.1:{self.port}",
                   f"--name={name}", "--threads=1")

    def call(self, *arguments):
        command = [os.path.join(self.args.bin, "cadre"), *arguments, "--coordinator", f"127.0.0.1:{self.port}", "-o",
                   "json", "--quiet", *self.args.flags.split()]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()}")
        return json.loads(done.stdout)

    def aggregators_connected(self):
        try:
            members = self.call("members")["aggregators"]
        except RuntimeError:
            return 0
        return sum(1 for one in members if one["member"]["connected"])

    def end(self, names, number=signal.SIGKILL):
        for name in names:
            self.processes[name].send_signal(number)
        for name in names:
            self.processes[name].wait()


def size(path):
    """Bytes of a file, with its write-ahead log, or of all files below a folder."""
    if not os.path.isdir(path):
        return sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end))
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def measure(cluster, runs):
    # The last orders to remove files may not have been carried out.
    for _ in range(100):
        kept = [len([n for n in os.listdir(cluster.path(a)) if n.startswith("run-")]) for a in AGGREGATORS]
        if max(kept) <= cluster.args.keep:
            break
        time.sleep(0.05)
    return {"bench": "keep_runs", "runs": runs, "keep": cluster.args.keep, "store_bytes": size(cluster.path("store.db")),
            "aggregator_bytes": [size(cluster.path(name)) for name in AGGREGATORS], "kept": kept}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/bin", help="folder of the programs")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--keep", type=int, default=10, help="--keep-closed-runs of coordinator and aggregators")
    parser.add_argument("--every", type=int, default=20, help="runs between two measurements")
    parser.add_argument("--warm-up", type=int, default=40, help="runs before growth counts")
    parser.add_argument("--flags", default="", help="more flags for all programs")
    parser.add_argument("--output", help="also write the lines to this file")
    args = parser.parse_args()
    lines = []

    def report(line):
        lines.append(json.dumps(line))
        print(lines[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(args, folder)
        try:
            with open(cluster.path("run.textproto"), "w") as file:
                file.write(SPEC)
            cluster.start_coordinator()
            cluster.start_aggregators()
            for name in ("w0", "w1"):
                cluster.start_worker(name)
            points = []
            for run in range(1, args.runs + 1):
                cluster.call("run", cluster.path("run.textproto"))
                if run % args.every == 0:
                    points.append(measure(cluster, run))
                    report(points[-1])
            daemons = ["coordinator", *AGGREGATORS]
            cluster.end(daemons)
            begin = time.monotonic()
            cluster.start_coordinator()
            cluster.start_aggregators()
            while cluster.aggregators_connected() < len(AGGREGATORS):
                time.sleep(0.02)
            restart = time.monotonic() - begin
        finally:
            cluster.end([name for name, process in cluster.processes.items() if process.poll() is None])

    counted = [point for point in points if point["runs"] >= args.warm_up]

    def growth(of):
        return max(map(of, counted)) / of(counted[0]) - 1

    verdict = {"bench": "keep_runs", "verdict": True, "store_growth": round(growth(lambda p: p["store_bytes"]), 4),
               "aggregator_growth": round(growth(lambda p: sum(p["aggregator_bytes"])), 4),
               "restart_seconds": round(restart, 2)}
    verdict["passed"] = max(verdict["store_growth"], verdict["aggregator_growth"]) <= 0.05 and restart < 5
    report(verdict)
    if args.output:
        with open(args.output, "w") as file:
            file.write("\n".join(lines) + "\n")
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
