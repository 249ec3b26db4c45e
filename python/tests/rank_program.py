"""Programs of two ranks that differ: independent models, and a rank that leaves early."""

from __future__ import annotations

import argparse
import json
import sys

import torch

import cadre
from output import print_line


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--spec", required=True, help="JSON")
    parser.add_argument("--differ", choices=["first", "later"], help="when the models of the ranks differ")
    parser.add_argument("--steps", type=int, default=1000000, help="of rank 1, which then leaves")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = torch.nn.Linear(4, 2)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 1.0 + (rank if options.differ == "first" else 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = 1.0 + (rank if options.differ == "later" else 0)
    steps = 0
    try:
        with cadre.attach(model, optimizer, coordinator=options.coordinator, run=json.loads(options.spec),
                          insecure=True, timeout=180) as group:
            while rank == 0 or steps < options.steps:
                optimizer.zero_grad()
                (model(torch.ones(1, 4)).sum() * scale).backward()
                optimizer.step()
                steps += 1
            if rank == 1:
                group.close("its part is done")
    except cadre.CadreError as error:
        print_line({"rank": rank, "error": str(error)})
    else:
        print_line({"rank": rank, "step": group.step})


if __name__ == "__main__":
    sys.exit(main())
