#!/usr/bin/env python3
"""Shows that old runs fill no disk and delay no start.

Trains small runs one after the other with a coordinator, two aggregators and two workers on this machine that keep
few ended runs. After every --every runs it adds up the bytes of the coordinator's store and of the aggregators'
folders. Growth counts from --warm-up runs on, when the kept runs and SQLite's write-ahead log, which starts again from
its beginning at 4 MiB, have their sizes. At the end it kills and restarts coordinator and aggregators, and measures
the time until the aggregators have joined again. Prints one JSON line for each measurement and, last, the verdict:

    bench/keep_runs.py --bin build/bin --output keep-runs.jsonl
"""
import os
import sys
import tempfile
import time

from runner import Cluster, parser, report

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
# Three versions of its 70,700 parameters.
RUN_BYTES = 3 * 4 * 70_700
AGGREGATORS = ("a0", "a1")
WORKERS = ("w0", "w1")


def start_daemons(cluster, keep):
    cluster.start_coordinator(f"--keep-runs-bytes={keep * RUN_BYTES}", "--removal-notice=0s")
    for name in AGGREGATORS:
        cluster.start_aggregator(name)


def aggregators_connected(cluster):
    try:
        return sum(one["member"]["connected"] for one in cluster.call("members")["aggregators"])
    except RuntimeError:
        return 0


def size(path):
    """Bytes of a file, with its write-ahead log, or of all files below a folder."""
    if not os.path.isdir(path):
        return sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end))
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def measure(args, cluster, runs):
    # The last orders to remove files may not have been carried out.
    for _ in range(100):
        kept = [len([n for n in os.listdir(cluster.path(a)) if n.startswith("run-")]) for a in AGGREGATORS]
        if max(kept) <= args.keep:
            break
        time.sleep(0.05)
    return report(args, "keep_runs", runs=runs, keep=args.keep, store_bytes=size(cluster.path("store.db")),
                  aggregator_bytes=[size(cluster.path(name)) for name in AGGREGATORS], kept=kept)


def main():
    p = parser(__doc__)
    p.add_argument("--runs", type=int, default=200)
    p.add_argument("--keep", type=int, default=10, help="ended runs that the budget of bytes allows")
    p.add_argument("--every", type=int, default=20, help="runs between two measurements")
    p.add_argument("--warm-up", type=int, default=40, help="runs before growth counts")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder, Cluster(args.bin, folder) as cluster:
        with open(cluster.path("run.textproto"), "w") as file:
            file.write(SPEC)
        start_daemons(cluster, args.keep)
        for name in WORKERS:
            cluster.start_worker(name)
        points = []
        for run in range(1, args.runs + 1):
            cluster.call("run", cluster.path("run.textproto"))
            if run % args.every == 0:
                points.append(measure(args, cluster, run))
        cluster.end("coordinator", *AGGREGATORS)
        begin = time.monotonic()
        start_daemons(cluster, args.keep)
        while aggregators_connected(cluster) < len(AGGREGATORS):
            time.sleep(0.02)
        restart = time.monotonic() - begin

    counted = [point for point in points if point["runs"] >= args.warm_up]

    def growth(of):
        return round(max(map(of, counted)) / of(counted[0]) - 1, 4)

    store, aggregators = growth(lambda p: p["store_bytes"]), growth(lambda p: sum(p["aggregator_bytes"]))
    passed = max(store, aggregators) <= 0.05 and restart < 5
    report(args, "keep_runs", verdict=True, store_growth=store, aggregator_growth=aggregators,
           restart_seconds=round(restart, 2), passed=passed)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
