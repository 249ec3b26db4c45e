#!/usr/bin/env python3
"""A group of time_to_accuracy.py that trains with PyTorch: the network and the optimizer of its run file.

Requires PyTorch and the package `cadre` (see docs/pytorch.md). Uses one thread, as the native workers do.
"""
import argparse
import os
import sys

import torch
from torch.nn import functional

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python", folder)
                for folder in ("", "examples")]
import cadre  # noqa: E402
from fashion_mnist import Net, read  # noqa: E402


NAME = "time-to-accuracy"
BATCH = 64


def run_to(stop, samples, overlap):
    """The averages of time_to_accuracy.textproto."""
    coding = {"codec": "CODEC_STAT2"}
    return {"name": NAME, "model": {"opaque": {"epoch_samples": samples}}, "batch_per_group": BATCH,
            "averaging": {"every_steps": 64, "outer": {"nesterov": {}}, "up": coding, "down": coding,
                          "overlap": {"steps": overlap}},
            "cluster": {"groups": 2, "aggregators": 2}, "evaluation": {"every_steps": 64},
            "stop": stop}


class Sequence:
    """The run's sequence of samples (Group.sample_position): one permutation after the other."""

    def __init__(self, samples, seed):
        self.samples, self.seed, self.permutations = samples, seed, {}

    def __getitem__(self, positions):
        return torch.stack([self._permutation(p // self.samples)[p % self.samples] for p in positions])

    def _permutation(self, number):
        if number not in self.permutations:
            generator = torch.Generator().manual_seed(self.seed + number)
            self.permutations[number] = torch.randperm(self.samples, generator=generator)
        return self.permutations[number]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--name", required=True, help="of this process in the status")
    parser.add_argument("--target", type=float, default=0.9, help="test accuracy, 0..1")
    parser.add_argument("--steps", type=int, help="train for so many steps, whatever the accuracy")
    parser.add_argument("--overlap", type=int, default=32, help="steps that an exchange overlaps")
    parser.add_argument("--join", action="store_true", help="join the run, which native groups evaluate")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    images, labels = read("train")
    test_images, test_labels = read("t10k")
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def evaluate(begin, end):
        with torch.no_grad():
            logits = torch.cat([model(part) for part in test_images[begin:end].split(500)])
        wanted = test_labels[begin:end]
        correct = (logits.argmax(1) == wanted).float().mean().item()
        return correct, functional.cross_entropy(logits, wanted).item()

    sequence = Sequence(len(images), args.seed)
    if args.join:
        options = {"run": NAME}
    else:
        stop = {"steps": args.steps} if args.steps else {"test_accuracy": args.target, "epochs": 20}
        options = {"run": run_to(stop, len(images), args.overlap), "evaluate": evaluate, "test_samples": len(test_images)}
    group = cadre.attach(model, optimizer, coordinator=args.coordinator, name=args.name, insecure=True, **options)
    for _ in group:
        first = group.sample_position
        chosen = sequence[range(first, first + BATCH)]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        group.report(loss=loss)
        optimizer.step()


if __name__ == "__main__":
    main()
