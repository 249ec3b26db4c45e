"""A program that pauses in its loop, or ends it early. Prints a line for each version and each step."""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from typing import Any

import torch

import cadre
from output import print_line


def fail(group: cadre.Group, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Trains like a trainer, whose user's data set raises an exception at this step."""
    group.start()
    while group.step < step:
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    raise ValueError("no such sample: 7")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--spec", required=True, help="JSON")
    parser.add_argument("--ranks", action="store_true", help="of torchrun, with equal models")
    parser.add_argument("--slow", type=float, default=0, help="seconds of each step")
    parser.add_argument("--compile", type=float, default=0, help="seconds of the compilation")
    parser.add_argument("--pause-at", type=int, default=-1, help="step before which it pauses once")
    parser.add_argument("--pause", type=float, default=0, help="seconds")
    parser.add_argument("--end-at", type=int, nargs="*", default=[], help="step, for each rank")
    parser.add_argument("--fail-at", type=int, help="step at which the loop of a trainer fails")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.ranks:
        torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank() if options.ranks else 0
    end_at = options.end_at[min(rank, len(options.end_at) - 1)] if options.end_at else -1
    model: torch.nn.Module = torch.nn.Linear(4, 2)
    if options.compile > 0:
        model = compiled(model, options.compile)
    torch.nn.init.constant_(model.weight, 1.0)
    torch.nn.init.constant_(model.bias, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    seen = -1
    if options.fail_at is not None:
        group = cadre.attach(model, optimizer, coordinator=options.coordinator, run=json.loads(options.spec),
                             insecure=True, timeout=90)
        fail(group, model, optimizer, options.fail_at)

    def report(**line: object) -> None:
        if rank == 0:
            print_line({"time": time.time(), **line})

    try:
        with cadre.attach(model, optimizer, coordinator=options.coordinator, run=json.loads(options.spec),
                          insecure=True, timeout=90) as group:
            while True:
                if group.version != seen:
                    seen = group.version
                    report(version=seen, digest=group.digest, step=group.step, discarded=group.discarded_steps)
                if group.step == options.pause_at:
                    options.pause_at = -1
                    time.sleep(options.pause)
                if group.step == end_at:
                    group.finish()
                    break
                time.sleep(options.slow)
                optimizer.zero_grad()
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                report(trained=group.step)
    except cadre.CadreError as error:
        print_line({"rank": rank, "error": str(error)})
        return
    report(ended=True, version=group.version, digest=group.digest, step=group.step,
           discarded=group.discarded_steps, weight=model.weight.flatten().tolist())


def compiled(model: torch.nn.Module, seconds: float) -> Any:
    """The model, whose compilation at its first call takes this time. It holds the interpreter's lock."""

    def compile_slowly(graph: Any, _: Any) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ctypes.PyDLL(None).usleep(500000)
        print_line({"compiled": seconds})
        return graph.forward

    return torch.compile(model, backend=compile_slowly)


if __name__ == "__main__":
    sys.exit(main())
