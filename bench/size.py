#!/usr/bin/env python3
"""Memory, disk and processor time of runs of many parameters whose gradients are cheap.

`native`: one worker trains fully connected layers with AdamW. `attached`: two PyTorch programs whose gradients are
constants, and whose optimizer has no state. Both have two aggregators and a coordinator on this host. Each form of
averaging prints a JSON line, in bytes per parameter: what the plan states for a worker, what the process has at most,
and what it has besides weights, gradients and optimizer. Memory is resident. Disk is the largest size of both
aggregators' folders together. The processor seconds are those of a round, `boundary_seconds` what a round keeps the
group from training; for the limit, the line has what this host copies in memory, with one thread, and writes to the
disk. Needs built programs, for `attached` PyTorch, too:

    deploy/build.sh cadre cadre-worker cadre_group cadre-coordinator cadre-aggregator && bench/size.py
"""
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from runner import Cluster, json_lines, memory, parser, report, use_python_package

use_python_package()

AGGREGATORS = ("a", "b")
EVERY_STEPS = 5
# Until a worker has prepared a run.
START_SECONDS = 600
TENSORS = 16
# Weights, gradients and two states.
ADAMW_BYTES = 16
CODED = {"up": {"codec": "CODEC_E3M0"}, "down": {"codec": "CODEC_E3M0"}}
FORMS = {"fp32": {}, "e3m0": CODED,
         "e3m0-overlap": {**CODED, "overlap": {"steps": 2}, "outer": {"nesterov": {}}}}


def averaging(form):
    return {"every_steps": EVERY_STEPS, **FORMS[form]}


def train(options):
    """The program of a group."""
    import torch

    import cadre

    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.randn(options.values // TENSORS // 256, 256) for _ in range(TENSORS))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for parameter in model:
        parameter.grad = torch.randn_like(parameter)
    before = memory("self", "VmRSS")
    group = cadre.attach(model, optimizer, coordinator=options.coordinator, run=json.loads(options.run), insecure=True,
                         timeout=300)
    between, seconds = [], []
    for _ in group:
        if group.step % EVERY_STEPS == EVERY_STEPS - 1:
            between.append(memory("self", "VmRSS"))
        version, begin = group.version, time.monotonic()
        optimizer.step()
        if group.version != version:
            seconds.append(time.monotonic() - begin)
    print(json.dumps({"before": before, "between": between[-1], "largest": memory("self", "VmHWM"),
                      "boundary": statistics.median(seconds), "processor": time.process_time(), "digest": group.digest}))


def processor_seconds(process):
    with open(f"/proc/{process}/stat", encoding="ascii") as text:
        fields = text.read().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


class Disk:
    """Watches how much the files in some folders are at most."""

    def __init__(self, folders):
        self.folders, self.largest = folders, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _watch(self):
        while not self._ended.wait(0.05):
            self.largest = max(self.largest, sum(map(self._size, self.folders)))

    @staticmethod
    def _size(folder):
        size = 0
        for path in folder.rglob("*"):
            try:
                size += path.stat().st_blocks * 512
            except FileNotFoundError:  # replaced meanwhile
                pass
        return size


def rates(folder, size=256 << 20):
    """Bytes per second that one thread copies in memory, and that are written and made durable in a folder."""
    data, copy = bytearray(os.urandom(1 << 20)) * (size >> 20), bytearray(size)
    copied = []
    for _ in range(3):
        begin = time.perf_counter()
        copy[:] = data
        copied.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    with open(os.path.join(folder, "rate"), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    written = time.perf_counter() - begin
    os.remove(file.name)
    return size / min(copied), size / written


def run_native(cluster, form, options):
    layers = max(1, round(options.values / options.width ** 2))
    hidden = "".join(f'layer {{ name: "fc{i}" fully_connected {{ out_features: {options.width} }} }}\n'
                     for i in range(layers))
    spec = f"""
name: "size"
model {{ input {{ channels: {options.width} height: 1 width: 1 }}
{hidden}layer {{ name: "out" fully_connected {{ out_features: 10 }} }}
layer {{ name: "loss" softmax_cross_entropy {{}} }} }}
data {{ synthetic {{ train_samples: 4096 test_samples: 4 classes: 10 }} }}
batch_per_group: 1
optimizer {{ adamw {{}} }}
schedule {{ base_rate: 1e-6 }}
averaging {{ {text_of(averaging(form))} }}
cluster {{ groups: 1 ranks_per_group: 1 aggregators: 2 }}
stop {{ steps: {EVERY_STEPS * options.rounds} }}
evaluation {{ every_epochs: 1000000 }}
seed: 1
"""
    path = cluster.path("run.textproto")
    Path(path).write_text(spec, encoding="utf-8")
    cluster.start_worker("worker")
    worker = cluster.processes["worker"].pid
    while not cluster.call("members")["workers"]:
        time.sleep(0.1)
    idle = memory(worker, "VmRSS")
    run = cluster.call("run", path, "--detach")["run"]
    planned = planned_bytes(cluster, run)
    ended = cluster.call("wait", run)
    parameters = layers * (options.width ** 2 + options.width) + 10 * (options.width + 1)
    largest = memory(worker, "VmHWM") - idle
    return {"parameters": parameters, "planned": planned, "largest": largest,
            "besides_the_model": largest - ADAMW_BYTES * parameters,
            "processor_seconds": processor_seconds(worker) / options.rounds,
            "boundary_seconds": ended["exposed_exchange_seconds"] / options.rounds}


def planned_bytes(cluster, run):
    """The memory that the plan states for the only rank, with that of its exchange."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        members = [member for group in cluster.call("describe", run)["groups"] for member in group["members"]]
        if members and members[0].get("planned_memory"):
            return sum(members[0]["planned_memory"].values())
        time.sleep(0.1)
    raise RuntimeError(f"the worker has not described its memory within {START_SECONDS} s")


def text_of(message):
    """A JSON object as the text of a message."""
    return " ".join(f"{key} {{ {text_of(value)} }}" if isinstance(value, dict) else f"{key}: {value}"
                    for key, value in message.items())


def run_attached(cluster, form, options):
    run = {"name": "size", "batch_per_group": 1, "stop": {"steps": EVERY_STEPS * options.rounds},
           "averaging": {**averaging(form), "min_groups": 2},
           "cluster": {"groups": 2, "aggregators": 2, "rejoin_wait_ms": 60000}}
    programs = ("program0", "program1")
    for name in programs:
        cluster.start(name, [sys.executable, __file__, "--values", str(options.values), "--run", json.dumps(run),
                             "--coordinator", cluster.coordinator])
    for name in programs:
        assert cluster.processes[name].wait(1800) == 0, Path(cluster.path(f"{name}.log")).read_text()[-3000:]
    ends = [json_lines(Path(cluster.path(f"{name}.log")).read_text())[-1] for name in programs]
    assert ends[0]["digest"] == ends[1]["digest"]
    besides = max(end["largest"] - end["before"] for end in ends)
    return {"parameters": options.values, "largest": max(end["largest"] for end in ends), "besides_the_model": besides,
            "between_rounds": max(end["between"] - end["before"] for end in ends),
            "processor_seconds": max(end["processor"] for end in ends) / options.rounds,
            "boundary_seconds": max(end["boundary"] for end in ends)}


def measure(kind, form, options):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, Cluster(options.bin, folder) as cluster:
        copy_rate, disk_rate = rates(folder)
        cluster.start_coordinator()
        for name in AGGREGATORS:
            cluster.start_aggregator(name)
        with Disk([Path(cluster.path(name)) for name in AGGREGATORS]) as disk:
            of_program = {"native": run_native, "attached": run_attached}[kind](cluster, form, options)
        parameters = of_program["parameters"]
        aggregators = [cluster.processes[name].pid for name in AGGREGATORS]
        per_parameter = {f"{key}_bytes_per_parameter": round(of_program[key] / parameters, 2)
                         for key in ("planned", "largest", "besides_the_model", "between_rounds") if key in of_program}
        report(options, "size", kind=kind, form=form, parameters=parameters, rounds=options.rounds, **per_parameter,
               program_processor_seconds=round(of_program["processor_seconds"], 2),
               boundary_seconds=round(of_program["boundary_seconds"], 2),
               aggregators_processor_seconds=round(sum(map(processor_seconds, aggregators)) / options.rounds, 2),
               aggregator_bytes=max(memory(process, "VmHWM") for process in aggregators),
               coordinator_bytes=memory(cluster.processes["coordinator"].pid, "VmHWM"),
               disk_bytes_per_parameter=round(disk.largest / parameters, 2),
               copy_bytes_per_second=round(copy_rate), disk_bytes_per_second=round(disk_rate))


def main():
    p = parser(__doc__)
    p.add_argument("--values", type=int, default=64 << 20, help="parameters; native runs round to whole layers")
    p.add_argument("--width", type=int, default=4096, help="of the layers of native runs")
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--kinds", default="native,attached")
    p.add_argument("--forms", default=",".join(FORMS))
    p.add_argument("--folder", help="for the files of the run (default: a temporary folder)")
    p.add_argument("--run", help="run the program of a group")
    p.add_argument("--coordinator")
    options = p.parse_args()
    if options.run:
        return train(options)
    for kind in options.kinds.split(","):
        for form in options.forms.split(","):
            measure(kind, form, options)


if __name__ == "__main__":
    main()
