#!/usr/bin/env python3
"""How a group on a slow link delays the rounds of two fast ones.

Three groups of one worker average a model of 4.3 million parameters (17 MB) with a quorum of 2. All hosts are network
namespaces. After --seconds, the link of the third worker falls to --slow. Prints a JSON line with the seconds between
two versions before and after, and the number of rounds in which the slow group took part. Requires root, iproute2 and
built programs:

    deploy/build.sh cadre cadre-coordinator cadre-aggregator cadre-worker && sudo bench/slow_group.py
"""
import statistics
import sys
import tempfile
import time

from hosts import Hosts
from runner import Cluster, parser, report

WORKERS = ["w0", "w1", "w2"]
RUN = """
name: "slow-group"
model {
  input { channels: 1 height: 28 width: 28 }
  layer { name: "fc1" fully_connected { out_features: 4096 } }
  layer { name: "relu1" relu {} }
  layer { name: "fc2" fully_connected { out_features: 256 } }
  layer { name: "relu2" relu {} }
  layer { name: "fc3" fully_connected { out_features: 10 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
data { synthetic { train_samples: 4096 test_samples: 64 classes: 10 } }
batch_per_group: 32
optimizer { sgd { momentum: 0.9 } }
schedule { base_rate: 0.001 }
averaging { every_steps: %d quorum: 2 min_grace_ms: 500 }
cluster { groups: 3 ranks_per_group: 1 }
stop { steps: 100000000 }
evaluation { every_epochs: 100000000 }
seed: 1
"""


def commits(cluster):
    return [entry for entry in cluster.call("history", "slow-group")["entries"] if "commit" in entry]


def intervals(entries, begin, end):
    """Seconds between versions, for those that were committed between two times of the Unix epoch."""
    times = [int(entry["time_ms"]) / 1000 for entry in entries]
    return [later - earlier for earlier, later in zip(times, times[1:]) if begin <= later <= end]


def train(cluster, hosts, options):
    """Returns the times of the start, of the change of the link, and of the end."""
    while len(commits(cluster)) < 3:
        time.sleep(0.5)
    begin = time.time()
    time.sleep(options.seconds)
    change = time.time()
    hosts.set_rate("w2", options.slow)
    time.sleep(options.slow_seconds)
    return begin, change, time.time()


def main():
    p = parser(__doc__)
    p.add_argument("--rate", default="1gbit", help="of all links at first")
    p.add_argument("--slow", default="1mbit", help="of the third worker's link later")
    p.add_argument("--seconds", type=float, default=60, help="before the change")
    p.add_argument("--slow-seconds", type=float, default=240, help="after it")
    p.add_argument("--every-steps", type=int, default=100)
    options = p.parse_args()
    with Hosts(["main", *WORKERS], options.rate) as hosts, tempfile.TemporaryDirectory() as folder:
        with Cluster(options.bin, folder, hosts) as cluster:
            cluster.start_coordinator(host="main")
            cluster.start_aggregator("main", host="main")
            for name in WORKERS:
                cluster.start_worker(name, host=name)
            run_file = cluster.path("run.textproto")
            with open(run_file, "w", encoding="ascii") as file:
                file.write(RUN % options.every_steps)
            cluster.call("run", run_file, "--detach")
            begin, change, end = train(cluster, hosts, options)
            entries = commits(cluster)
    before, after = intervals(entries, begin, change), intervals(entries, change, end)
    if len(before) < 3 or not after:
        sys.exit(f"{len(before)} versions before the change and {len(after)} after it are too few; raise --seconds")
    with_slow = [entry for entry in entries
                 if int(entry["time_ms"]) / 1000 > change and len(entry["commit"]["participants"]) == len(WORKERS)]
    report(options, "slow_group", rate=options.rate, slow=options.slow, every_steps=options.every_steps,
           versions_before=len(before), median_seconds_before=statistics.median(before), max_seconds_before=max(before),
           versions_after=len(after), median_seconds_after=statistics.median(after), max_seconds_after=max(after),
           ratio=statistics.mean(after) / statistics.mean(before), rounds_with_slow=len(with_slow))


if __name__ == "__main__":
    main()
