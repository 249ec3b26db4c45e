#!/usr/bin/env python3
"""Writes the fixtures of tests/torch: results of PyTorch with which Cadre is compared.

Needs PyTorch, NumPy and safetensors (the fixtures in this folder were written with PyTorch 2.13.0,
NumPy 2.4.6 and safetensors 0.8.0, all for the CPU); the tests themselves need no Python.

  python3 tests/torch/make_fixtures.py ops
      writes ops.safetensors: single operations and optimizers, in float64 (op_cases.py,
      optimizer_cases.py, sequence_cases.py). Seed 20.

  python3 tests/torch/make_fixtures.py outer
      writes outer.safetensors: updates of torch.optim.SGD(nesterov=True) in float32, as an outer
      optimizer. Written with PyTorch 2.15.0. Seed 20.

  for run in lenet alexnet resnet18 gpt gnmt; do
    build/bin/torch_dump --spec=tests/torch/$run.textproto --out=/tmp/curves/$run.safetensors
  done
  python3 tests/torch/make_fixtures.py curves /tmp/curves/*.safetensors
      writes the losses of these runs to curves.safetensors, which keeps the others (curve_models.py).
      Weights and batches come from torch_dump; the seed is that of each run file.

Tensors have Cadre's memory order: images [batch, height, width, channels], parameters as in
proto/cadre/v1/run.proto.
"""

import argparse
import json
import pathlib
import sys

import numpy
import safetensors
import safetensors.numpy
import torch

import curve_models
import op_cases
import optimizer_cases
import sequence_cases

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20


def versions():
    return {"torch": torch.__version__, "numpy": numpy.__version__}


def sorted_header(data):
    """The same file with a sorted header, so that equal fixtures are equal files."""
    size = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[size:]


def save(name, tensors, metadata):
    arrays = {key: numpy.ascontiguousarray(value.detach().to(torch.float32).numpy())
              for key, value in tensors.items()}
    data = sorted_header(safetensors.numpy.save(arrays, metadata=metadata))
    (HERE / name).write_bytes(data)
    print(f"{name}: {len(arrays)} tensors, {(HERE / name).stat().st_size} bytes")


def make_ops():
    torch.manual_seed(SEED)
    tensors, specs = {}, {}
    for module in (op_cases, optimizer_cases, sequence_cases):
        for name, spec, results in module.cases():
            assert name not in specs, name
            specs[name] = spec
            tensors.update({f"{name}/{key}": value for key, value in results.items()})
    save("ops.safetensors", tensors, {**specs, "made_with": str(versions())})


def make_outer():
    """Five rounds of 300 values: x/ROUND after the mean of the groups was mean/ROUND."""
    torch.manual_seed(SEED)
    value = torch.nn.Parameter(torch.randn(300))
    optimizer = torch.optim.SGD([value], lr=0.7, momentum=0.9, nesterov=True)
    tensors = {"x/0": value.detach().clone()}
    for step in range(1, 6):
        mean = value.detach() + 0.1 * torch.randn(300)
        value.grad = value.detach() - mean
        optimizer.step()
        tensors.update({f"mean/{step}": mean, f"x/{step}": value.detach().clone()})
    save("outer.safetensors", tensors, {"made_with": str(versions())})


def make_curves(dumps):
    with safetensors.safe_open(HERE / "curves.safetensors", framework="pt") as before:
        tensors = {key: before.get_tensor(key) for key in before.keys()}
        metadata = before.metadata() | {"made_with": str(versions())}
    for path in dumps:
        with safetensors.safe_open(path, framework="pt") as dump:
            name = dump.metadata()["name"]
            metadata[f"{name}/digest"] = dump.metadata()["digest"]
            for key, value in curve_models.train(dump).items():
                tensors[f"{name}/{key}"] = value
    save("curves.safetensors", tensors, metadata)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ops", "outer", "curves"))
    parser.add_argument("dumps", nargs="*", help="for curves: files that torch_dump wrote")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "ops":
        make_ops()
    elif arguments.what == "outer":
        make_outer()
    else:
        make_curves(arguments.dumps)


if __name__ == "__main__":
    sys.exit(main())
