#!/usr/bin/env python3
"""Host memory and disk of a run of PyTorch programs: two programs, two aggregators and a coordinator on this host.

The model has --values values in fp32 and as many of gradients, and its optimizer has no state. Prints a JSON line for
each codec. Memory is resident; what a program has besides the memory before `attach` is given in copies of the model.
Disk is the largest size of both aggregators' folders together. Needs built programs and PyTorch:

    deploy/build.sh cadre_group cadre-coordinator cadre-aggregator && bench/attach_memory.py
"""
import json
import sys
import tempfile
import threading
from pathlib import Path

from runner import Cluster, json_lines, memory, parser, report, use_python_package

use_python_package()
import cadre  # noqa: E402

AGGREGATORS = ("a", "b")
EVERY_STEPS = 5
TENSORS = 16


def train(options):
    import torch

    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.randn(options.values // TENSORS // 256, 256) for _ in range(TENSORS))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for parameter in model:
        parameter.grad = torch.randn_like(parameter)
    before = memory("self", "VmRSS")
    group = cadre.attach(model, optimizer, coordinator=options.coordinator, run=json.loads(options.run), insecure=True,
                         timeout=300)
    between = []
    for _ in group:
        if group.step % EVERY_STEPS == EVERY_STEPS - 1:
            between.append(memory("self", "VmRSS"))
        optimizer.step()
    print(json.dumps({"before": before, "between": between[-1], "largest": memory("self", "VmHWM"),
                      "digest": group.digest, "versions": group.version}))


def disk_used(folders):
    def sizes():
        for folder in folders:
            for path in folder.rglob("*"):
                try:
                    yield path.stat().st_blocks * 512
                except FileNotFoundError:  # replaced meanwhile
                    pass
    return sum(sizes())


def measure(cluster, codec, options):
    coding = {} if codec == "fp32" else {"codec": f"CODEC_{codec.upper()}"}
    run = {"name": f"memory-{codec}", "batch_per_group": 1, "stop": {"steps": EVERY_STEPS * options.rounds},
           "averaging": {"every_steps": EVERY_STEPS, "min_groups": 2,
                         **({"up": coding, "down": coding} if coding else {})},
           "cluster": {"groups": 2, "aggregators": 2, "rejoin_wait_ms": 60000}}
    programs = ("program0", "program1")
    for name in programs:
        cluster.start(name, [sys.executable, __file__, "--values", str(options.values), "--run", json.dumps(run),
                             "--coordinator", cluster.coordinator])
    folders = [Path(cluster.path(name)) for name in AGGREGATORS]
    largest_disk, ended = 0, threading.Event()

    def watch_disk():
        nonlocal largest_disk
        while not ended.wait(0.05):
            largest_disk = max(largest_disk, disk_used(folders))

    watcher = threading.Thread(target=watch_disk)
    watcher.start()
    try:
        for name in programs:
            assert cluster.processes[name].wait(500) == 0, Path(cluster.path(f"{name}.log")).read_text()[-3000:]
    finally:
        ended.set()
        watcher.join()
    ends = [json_lines(Path(cluster.path(f"{name}.log")).read_text())[-1] for name in programs]
    assert ends[0]["digest"] == ends[1]["digest"]
    size = 4 * options.values
    report(options, "attach_memory", codec=codec, values=options.values, model_bytes=size,
           program_before_attach=max(end["before"] for end in ends),
           program_copies_between_rounds=max((end["between"] - end["before"]) / size for end in ends),
           program_copies_largest=max((end["largest"] - end["before"]) / size for end in ends),
           aggregator_largest=max(memory(cluster.processes[name].pid, "VmHWM") for name in AGGREGATORS),
           coordinator_largest=memory(cluster.processes["coordinator"].pid, "VmHWM"), disk_copies_largest=largest_disk / size)


def main():
    p = parser(__doc__)
    p.add_argument("--values", type=int, default=64 << 20)
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--codecs", default="fp32,e3m0")
    p.add_argument("--run", help="run the program of a group")
    p.add_argument("--coordinator")
    options = p.parse_args()
    if options.run:
        return train(options)
    for codec in options.codecs.split(","):
        with tempfile.TemporaryDirectory() as folder, Cluster(options.bin, folder) as cluster:
            cluster.start_coordinator()
            for name in AGGREGATORS:
                cluster.start_aggregator(name)
            measure(cluster, codec, options)


if __name__ == "__main__":
    main()
