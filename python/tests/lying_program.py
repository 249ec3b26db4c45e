"""Softmax regression on Fashion-MNIST in several runs, one after the other; in some of them, the program lies.

A lie replaces what the optimizer has made of the parameters at the end of a round, just before it is contributed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Callable

import torch

import cadre
from output import print_line

sys.path.append(str(Path(__file__).parent.parent / "examples"))
from fashion_mnist import accuracy, read  # noqa: E402

LIES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "none": lambda change, first: change,
    "1e30": lambda change, first: torch.full_like(change, 1e30),
    "minus ten times": lambda change, first: -10 * change,
    "a hundred times": lambda change, first: 100 * change,
    "noise": lambda change, first: torch.randn_like(change) * change.norm() / change.numel() ** 0.5,
    "an old change": lambda change, first: first,
    "zeros": lambda change, first: torch.zeros_like(change),
    "nan": lambda change, first: torch.full_like(change, torch.nan),
}


class Liar:
    """Lies about the change of each round after the second one."""

    def __init__(self, model: torch.nn.Module, lie: str) -> None:
        self._parameters = list(model.parameters())
        self._lie = LIES[lie]
        self._rounds = 0
        self._first: list[torch.Tensor] = []

    def begin_round(self, group: cadre.Group) -> None:
        self._group = group
        self._before = [parameter.detach().clone() for parameter in self._parameters]

    def on_step(self, *_: object) -> None:
        # A group that was too late for a round makes fewer steps in the next one.
        if self._group.step + 1 != self._group.next_boundary:
            return
        self._rounds += 1
        changes = [parameter.detach() - before for parameter, before in zip(self._parameters, self._before)]
        if not self._first:
            self._first = changes
        if self._rounds <= 2:
            return
        with torch.no_grad():
            for parameter, before, change, first in zip(self._parameters, self._before, changes, self._first):
                parameter.copy_(before + self._lie(change, first))


def train(options: argparse.Namespace, spec: dict, lie: str, data: tuple[torch.Tensor, torch.Tensor]) -> None:
    images, labels = data
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    liar = Liar(model, lie)
    optimizer.register_step_post_hook(liar.on_step)
    generator = torch.Generator().manual_seed(options.number)
    version = -1
    try:
        group = cadre.attach(model, optimizer, coordinator=options.coordinator, run=spec, insecure=True, timeout=90)
        for _ in group:
            if group.version != version:
                version = group.version
                liar.begin_round(group)
            chosen = torch.randint(len(images), (64,), generator=generator)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        print_line({"run": spec["name"], "version": group.version, "digest": group.digest,
                    "accuracy": accuracy(model, *options.test)})
    except (RuntimeError, cadre.CadreError) as error:
        print_line({"run": spec["name"], "error": str(error)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--number", type=int, required=True, help="of this program")
    parser.add_argument("--runs", required=True, help="JSON: a list of runs, each with the lie of this program")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.test = read("t10k")
    data = read("train")
    for run in json.loads(options.runs):
        train(options, run["spec"], run["lie"], data)


if __name__ == "__main__":
    main()
