"""A program for the tests: a bf16 parameter that moves by a given amount in every second step."""

from __future__ import annotations

import argparse
import json

import torch

import cadre
from output import print_line


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--spec", required=True, help="JSON")
    parser.add_argument("--drift", type=float, required=True)
    options = parser.parse_args()
    model = torch.nn.Module()
    model.drift = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    with cadre.attach(model, optimizer, coordinator=options.coordinator, run=json.loads(options.spec),
                      insecure=True, timeout=90) as group:
        while True:
            print_line({"version": group.version, "digest": group.digest})
            model.drift.grad = torch.full_like(model.drift, -options.drift if group.step % 2 == 0 else 0)
            optimizer.step()
    print_line({"version": group.version, "digest": group.digest})


if __name__ == "__main__":
    main()
