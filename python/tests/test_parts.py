"""Which elements of a tensor a rank has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import cadre  # noqa: E402
from cadre._parameters import intervals as intervals_of, parameters_of, parts_of  # noqa: E402


@pytest.mark.parametrize("whole", [(), (5,), (3, 4), (2, 3, 4)])
def test_intervals_are_those_of_the_box(whole: tuple[int, ...]) -> None:
    elements = torch.arange(torch.Size(whole).numel()).reshape(whole)
    sides = [[(o, n) for o in range(extent) for n in range(extent - o + 1)] for extent in whole]
    for box in itertools.product(*sides):
        offset, part = [o for o, _ in box], [n for _, n in box]
        want = elements[tuple(slice(o, o + n) for o, n in box)].flatten().tolist()
        intervals = intervals_of(whole, part, offset)
        assert [p for begin, end in intervals for p in range(begin, end)] == want
        # As few as possible.
        assert all(a[1] < b[0] for a, b in itertools.pairwise(intervals))


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_partial_sums_are_refused(one_rank: None) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    tensor = torch.zeros(4, 6)
    assert parts_of("w", DTensor.from_local(tensor, mesh, [Replicate()])) == [(0, 24)]
    with pytest.raises(cadre.CadreError, match=r"'w' has placements \(Partial\(sum\),\)"):
        parts_of("w", DTensor.from_local(tensor, mesh, [Partial()]))


class Wrapping(torch.nn.Module):
    """A module of the user, whose attributes have names that wrappers of PyTorch use."""

    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Linear(2, 2)
        self._orig_mod = torch.nn.BatchNorm1d(2)
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))


_NAMES = ["module.weight", "module.bias", "_orig_mod.weight", "_orig_mod.bias", "inner.0.weight",
          "_orig_mod.running_mean", "_orig_mod.running_var"]


def names_of(model: torch.nn.Module) -> list[str]:
    return [found.name for found in parameters_of(model)]


def test_names_of_wrappers_are_left_out_by_type() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Wrapping()
    assert names_of(model) == _NAMES
    assert names_of(torch.compile(model)) == _NAMES
    assert names_of(torch.nn.DataParallel(torch.compile(model))) == _NAMES
    assert names_of(torch.compile(torch.nn.DataParallel(model))) == _NAMES
    model.inner = torch.compile(model.inner)
    assert names_of(model) == _NAMES
    model.inner = checkpoint_wrapper(model.inner)
    assert names_of(checkpoint_wrapper(model)) == _NAMES
    averaged = torch.optim.swa_utils.AveragedModel(Wrapping())
    assert [name for name in names_of(averaged) if name != "n_averaged"] == _NAMES
