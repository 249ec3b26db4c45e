"""The example's network on Fashion-MNIST, in a run that the test has submitted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import cadre
from output import print_line

sys.path.append(str(Path(__file__).parent.parent / "examples"))
from fashion_mnist import Net, accuracy, read  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--run", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = read("train")
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    seen = -1
    group = cadre.attach(model, optimizer, coordinator=options.coordinator, run=options.run,
                         insecure=True, timeout=90)
    for _ in group:
        if group.version != seen:
            seen = group.version
            print_line({"version": seen, "digest": group.digest, "step": group.step})
        position = group.sample_position
        generator = torch.Generator().manual_seed(position // len(images))
        order = torch.randperm(len(images), generator=generator)
        chosen = order[position % len(images):][:64]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
    print_line({"version": group.version, "digest": group.digest, "step": group.step,
                "accuracy": accuracy(model, *read("t10k"))})


if __name__ == "__main__":
    main()
