#!/usr/bin/env python3
"""What cadre.attach costs a PyTorch loop: in ordinary steps, and at a boundary with codecs on.

Trains the network of python/examples/fashion_mnist.py in one group of a cluster of processes on this
host. Blocks of steps with and without the hook alternate; then every 16th step is a boundary. Prints
one JSON line. Needs built programs and PyTorch:

  deploy/build.sh cadre_group cadre-coordinator cadre-aggregator && bench/attach_overhead.py
"""

import statistics
import tempfile
import time

from runner import Cluster, parser, report, use_python_package

use_python_package("python/examples")
import torch  # noqa: E402
from fashion_mnist import Net  # noqa: E402

import cadre  # noqa: E402
from cadre._steps import JointSteps  # noqa: E402


def spec(name, every_steps):
    coding = {"codec": "CODEC_E3M0"}
    return {"name": name, "batch_per_group": 64, "stop": {"steps": 10**8}, "cluster": {"groups": 1},
            "averaging": {"every_steps": every_steps, "up": coding, "down": coding}}


class Loop:
    def __init__(self):
        torch.manual_seed(1)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.inputs = torch.randn(64, 1, 28, 28)
        self.labels = torch.randint(10, (64,))

    def steps(self, count):
        """Seconds of each of `count` steps."""
        seconds = []
        for _ in range(count):
            begin = time.perf_counter()
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(self.inputs), self.labels).backward()
            self.optimizer.step()
            seconds.append(time.perf_counter() - begin)
        return seconds


def ordinary(loop, group, blocks, steps):
    with_hook, without = [], []
    for _ in range(blocks):
        with_hook += loop.steps(steps)
        group._hooks.remove()
        without += loop.steps(steps)
        group._hooks = JointSteps([loop.optimizer], group._after_step)
    # What PyTorch calls before and after a step.
    hooks = group._hooks._hooks[0]
    calls = 100_000
    begin = time.perf_counter()
    for _ in range(calls):
        hooks._before()
        hooks._after()
    return statistics.median(with_hook), statistics.median(without), (time.perf_counter() - begin) / calls


def main():
    p = parser(__doc__)
    p.add_argument("--blocks", type=int, default=6, help="blocks of steps with the hook")
    p.add_argument("--steps", type=int, default=40, help="steps of a block")
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--threads", type=int, default=1)
    options = p.parse_args()
    torch.set_num_threads(options.threads)
    loop = Loop()
    with tempfile.TemporaryDirectory() as folder, Cluster(options.bin, folder) as cluster:
        cluster.start_coordinator()
        cluster.start_aggregator("a")
        attached = {"coordinator": cluster.coordinator, "insecure": True, "timeout": 60}
        with cadre.attach(loop.model, loop.optimizer, run=spec("steps", 10**7), **attached) as group:
            loop.steps(10)
            with_hook, without, call = ordinary(loop, group, options.blocks, options.steps)
        boundaries = []
        with cadre.attach(loop.model, loop.optimizer, run=spec("rounds", 16), **attached) as group:
            exchange = group._boundary

            def timed(timeout):
                begin = time.perf_counter()
                exchange(timeout)
                boundaries.append(time.perf_counter() - begin)

            group._boundary = timed
            loop.steps(16 * options.rounds)
    report(options, "attach_overhead", torch=torch.__version__, threads=options.threads,
           parameters=sum(p.numel() for p in loop.model.parameters()), step_ms=1e3 * without,
           step_with_hook_ms=1e3 * with_hook, ratio=with_hook / without, hook_us=1e6 * call, hook_share=call / without,
           boundary_ms=1e3 * statistics.median(boundaries), codec="CODEC_E3M0", rounds=len(boundaries))


if __name__ == "__main__":
    main()
