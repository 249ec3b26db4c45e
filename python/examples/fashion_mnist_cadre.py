"""Trains a convolutional network on Fashion-MNIST as a group of a Cadre run."""

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import cadre

FOLDER = Path("/usr/share/datasets/fashion-mnist")


def read(split):
    with gzip.open(FOLDER / f"{split}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(FOLDER / f"{split}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    scaled = (torch.from_numpy(images.astype(np.float32)) / 255 - 0.2860) / 0.3530
    return scaled, torch.from_numpy(labels.astype(np.int64))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 1024)
        self.fc2 = nn.Linear(1024, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def accuracy(model, images, labels):
    with torch.no_grad():
        parts = [model(part).argmax(1) for part in images.split(1000)]
    return (torch.cat(parts) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2800)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--coordinator", default="127.0.0.1:7000")
    args = parser.parse_args()
    images, labels = read("train")
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    run = {"name": "fashion", "batch_per_group": args.batch, "stop": {"steps": args.steps},
           "averaging": {"every_steps": 16, "up": {"codec": "CODEC_E3M0"}, "down": {"codec": "CODEC_E3M0"}},
           "cluster": {"groups": 2}}
    group = cadre.attach(model, optimizer, coordinator=args.coordinator, run=run, insecure=True)
    for _ in group:
        begin = group.sample_position % (len(images) - args.batch)
        chosen = order[begin:begin + args.batch]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
    print(f"test accuracy {accuracy(model, *read('t10k')):.4f}")


if __name__ == "__main__":
    main()
