"""A program for the tests: a matrix to which it adds 1 once, after this many steps. Prints a line for each version."""

from __future__ import annotations

import argparse
import json
import time

import torch

import cadre
from output import print_line


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--spec", required=True, help="JSON")
    parser.add_argument("--once", type=int, default=-1, help="step; -1: never")
    options = parser.parse_args()
    model = torch.nn.Module()
    model.matrix = torch.nn.Parameter(torch.zeros(128, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    seen = -1
    with cadre.attach(model, optimizer, coordinator=options.coordinator, run=json.loads(options.spec),
                      insecure=True, timeout=90) as group:
        while True:
            if group.version != seen:
                seen = group.version
                values = model.matrix.detach()
                print_line({"version": seen, "digest": group.digest, "discarded": group.discarded_steps,
                            "least": values.min().item(), "greatest": values.max().item()})
            adds = group.step == options.once
            time.sleep(0.15)
            model.matrix.grad = torch.full_like(model.matrix, -1.0 if adds else 0.0)
            optimizer.step()
            if adds:
                print_line({"added": group.step})


if __name__ == "__main__":
    main()
