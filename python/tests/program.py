"""A small training program for the tests: a classifier of random points, as a group of a run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch

import cadre
from output import print_line


# Beyond the positions of all training samples.
TEST_POSITION = 1 << 40


class Exact(torch.nn.Module):
    """A model whose values and gradients are small multiples of powers of two, so that all sums are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(20, 7)
        self.second = torch.nn.Linear(20, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_((parameter * 64).round() / 64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        parts = [part(inputs) for part in (self.first, self.second) if part is not None]
        return torch.cat(parts, dim=1)


def shard(model: torch.nn.Module, first: torch.nn.Module, layout: str) -> None:
    """Shards a model of two parts with fully_shard."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    options: dict[str, Any] = {}
    if layout == "tensor":
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        plan = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model, mesh["tensor"], {"first": plan, "second": plan})
        options["mesh"] = mesh["data"]
    if layout == "columns":
        options["shard_placement_fn"] = lambda parameter: Shard(parameter.dim() - 1)
    elif layout == "replicas":
        options["mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(first, **options)
    fully_shard(model, **options)


def make_model(options: argparse.Namespace) -> torch.nn.Module:
    torch.manual_seed(options.seed)
    if options.exact:
        model = Exact()
        first = model.first
    else:
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 96), torch.nn.BatchNorm1d(96), torch.nn.ReLU(), torch.nn.Linear(96, 4)
        )
        first = model[3]
    if options.freeze:
        first.weight.requires_grad_(False)
    if options.fsdp:
        shard(model, first, options.fsdp)
    return model


def batch_at(position: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples [position, position + size) of an endless sequence."""
    generator = torch.Generator().manual_seed(position)
    inputs = torch.randn(size, 20, generator=generator)
    return inputs, (inputs[:, :4] + 0.5 * inputs[:, 4:8]).argmax(dim=1)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--run", default="")
    parser.add_argument("--spec", default="", help="JSON")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--fsdp", choices=["rows", "columns", "replicas", "tensor"])
    parser.add_argument("--freeze", action="store_true", help="freezes a weight")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--pipeline", action="store_true", help="each of two ranks has a part of the exact model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nan-at", type=int, default=0)
    parser.add_argument("--resize-at", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--slow", type=float, default=0, help="seconds of each step")
    parser.add_argument("--name")
    return parser.parse_args()


def evaluation_of(model: torch.nn.Module) -> dict[str, Any]:
    """The options of cadre.attach for an evaluation."""

    def evaluate(begin: int, end: int) -> tuple[float, float]:
        model.eval()
        with torch.no_grad():
            inputs, labels = batch_at(TEST_POSITION + begin, end - begin)
            scores = model(inputs)
        model.train()
        loss = torch.nn.functional.cross_entropy(scores, labels).item()
        return (scores.argmax(dim=1) == labels).float().mean().item(), loss

    return {"evaluate": evaluate, "test_samples": 500}


def loss_of(options: argparse.Namespace, model: torch.nn.Module, position: int, part: int, parts: int) -> torch.Tensor:
    """The loss of one of equal parts of a batch."""
    inputs, labels = batch_at(position, options.batch)
    share = options.batch // parts
    inputs, labels = (each[part * share:(part + 1) * share] for each in (inputs, labels))
    if options.exact:
        return (model(inputs.round()).sum(dim=1) * (labels - 1)).mean()
    return torch.nn.functional.cross_entropy(model(inputs), labels)


def spoil(options: argparse.Namespace, model: torch.nn.Module, step: int) -> None:
    """Makes the model invalid in the steps of the options."""
    if step == options.nan_at:
        with torch.no_grad():
            model[0].bias[3] = float("nan")
            model[0].bias.grad.zero_()
    if step == options.resize_at:
        model[3].bias = torch.nn.Parameter(torch.zeros(5))


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    ranks = options.fsdp is not None or options.ddp or options.pipeline
    if ranks:
        torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank() if ranks else 0
    size = torch.distributed.get_world_size() if ranks else 1
    # Ranks of tensor parallelism and of a pipeline have the same samples.
    part, parts = (rank // 2, size // 2) if options.fsdp == "tensor" else (rank, size)
    model = make_model(options)
    if options.pipeline:
        part, parts = 0, 1
        setattr(model, "second" if rank == 0 else "first", None)
    if options.ddp:
        model = torch.nn.parallel.DistributedDataParallel(model)
    if options.exact:
        optimizer = torch.optim.SGD(model.parameters(), lr=2**-6)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[float] = []
    run = json.loads(options.spec) if options.spec else options.run
    seen = -1
    test = evaluation_of(model) if options.evaluate else {}
    with cadre.attach(model, optimizer, coordinator=options.coordinator, run=run, insecure=True,
                      timeout=90, name=options.name, pipeline=options.pipeline, **test) as group:
        while True:
            if group.version != seen and rank == 0:
                seen = group.version
                print_line({"version": seen, "digest": group.digest, "step": group.step,
                            "participants": group.participants, "group": group.group,
                            "discarded": group.discarded_steps})
            if options.slow:
                time.sleep(options.slow)
            optimizer.zero_grad()
            loss = loss_of(options, model, group.sample_position, part, parts)
            losses.append(loss.item())
            group.report(loss=losses[-1])
            loss.backward()
            spoil(options, model, group.step + 1)
            optimizer.step()
    if rank == 0:
        print_line({"version": group.version, "digest": group.digest, "step": group.step,
                    "loss": sum(losses[-20:]) / len(losses[-20:]), "ended": group.ended,
                    "discarded": group.discarded_steps})
    if ranks:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
