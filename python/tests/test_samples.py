"""Which samples a group has: samplers, data sets and loops over loaders."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from cadre import CadreError  # noqa: E402
from cadre._samples import (  # noqa: E402
    Order,
    PositionDataset,
    PositionSampler,
    Sequence,
    endless_batches,
)


class FakeGroup:
    """A group at a step that the test sets."""

    def __init__(self, group: int = 0, groups: int = 1, batch: int = 4) -> None:
        self._begin = group * batch
        self.groups = groups
        self.batch = batch
        self.step = 0
        self.sequence = self.current_sequence()

    def current_sequence(self) -> Sequence:
        return Sequence(self._begin + self.step * self.groups * self.batch, self.batch, self.groups)

    def move(self, step: int) -> None:
        self.step = step
        self.sequence = self.current_sequence()


class Stream:
    """A data set that can only be read in order."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for sample in range(self.samples):
            self.read += 1
            yield sample


class Skipping(Stream):
    def skip(self, count: int) -> Iterator[int]:
        for sample in range(count, self.samples):
            self.read += 1
            yield sample


def take(samples: object, count: int) -> list[int]:
    return list(itertools.islice(iter(samples), count))  # type: ignore[call-overload]


def test_groups_and_ranks_share_each_epoch() -> None:
    order = {"shuffle": True, "seed": 3}
    parts = [
        take(PositionSampler(FakeGroup(group, 3), Order(24, **order), (rank, 2)), 8)
        for group in range(3) for rank in range(2)
    ]
    assert sorted(itertools.chain(*(part[:4] for part in parts))) == list(range(24))
    assert sorted(itertools.chain(*(part[4:] for part in parts))) == list(range(24))
    assert parts[0][:4] != parts[0][4:]


def test_order_is_that_of_the_positions() -> None:
    assert take(PositionSampler(FakeGroup(1, 2, 2), Order(5, shuffle=False, seed=0), (0, 1)), 6) == [2, 3, 1, 2, 0, 1]
    assert [Order(5, shuffle=True, seed=0)[p] for p in range(5)] != [Order(5, shuffle=True, seed=1)[p] for p in range(5)]


def test_ranks_that_cannot_share_a_batch_are_refused() -> None:
    sampler = PositionSampler(FakeGroup(batch=4), Order(8, shuffle=False, seed=0), (0, 3))
    with pytest.raises(CadreError, match="batch_per_group is 4, which 3 ranks cannot share equally"):
        take(sampler, 1)
    with pytest.raises(CadreError, match="no samples"):
        Order(0, shuffle=False, seed=0)


def test_sampler_moves_with_the_group() -> None:
    group = FakeGroup(groups=2)
    samples = iter(PositionSampler(group, Order(1000, shuffle=False, seed=0), (0, 1)))
    # What a loader has taken ahead does not move them.
    assert next(samples) == 0
    group.step = 1
    assert take(samples, 5) == [1, 2, 3, 8, 9]
    group.move(10)
    assert take(samples, 6) == [80, 81, 82, 83, 88, 89]


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("source", [range(40), Skipping(40)], ids=["indexed", "in order"])
def test_workers_share_the_samples(start: str, source: object) -> None:
    group = FakeGroup(1, 2, 2)
    group.move(3)
    dataset = PositionDataset(group, source, (0, 1), shuffle=False, seed=0)
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=start)
    taken = torch.cat(take(loader, 4)).tolist()
    assert sorted(taken) == [14, 15, 18, 19, 22, 23, 26, 27]


def test_copy_of_a_data_set_continues_from_the_step_of_the_copy() -> None:
    group = FakeGroup()
    dataset = PositionDataset(group, list(range(100)), (0, 1), shuffle=False, seed=0)
    group.move(5)
    copy = pickle.loads(pickle.dumps(dataset))
    group.move(9)
    assert take(copy, 2) == [20, 21]
    assert take(dataset, 2) == [36, 37]


def test_stream_is_read_in_order_and_again() -> None:
    group = FakeGroup(1, 2, 2)
    stream = Stream(7)
    # Positions 2, 3, 6, 7, 10, 11 of passes of 7.
    assert take(PositionDataset(group, stream, (0, 1), shuffle=False, seed=0), 6) == [2, 3, 6, 0, 3, 4]
    with pytest.raises(CadreError, match="Stream can only be read in order; pass shuffle=False"):
        PositionDataset(group, stream, (0, 1), shuffle=True, seed=0)
    with pytest.raises(CadreError, match="Stream has no samples"):
        take(PositionDataset(group, Stream(0), (0, 1), shuffle=False, seed=0), 1)


def test_stream_skips_what_precedes_the_group() -> None:
    group = FakeGroup(0, 1, 2)
    group.move(10)
    stream = Skipping(100)
    assert take(PositionDataset(group, stream, (0, 1), shuffle=False, seed=0), 3) == [20, 21, 22]
    assert stream.read == 3
    # Not beyond the first pass, whose length is not known.
    short = Skipping(7)
    assert take(PositionDataset(group, short, (0, 1), shuffle=False, seed=0), 3) == [6, 0, 1]


def test_batches_taken_before_a_move_are_dropped() -> None:
    group = FakeGroup(groups=2)
    sampler = PositionSampler(group, Order(1000, shuffle=False, seed=0), (0, 1))
    loader = torch.utils.data.DataLoader(range(1000), batch_size=4, sampler=sampler, num_workers=1)
    batches = endless_batches(loader, group)
    assert next(batches).tolist() == [0, 1, 2, 3]
    group.step = 1
    assert next(batches).tolist() == [8, 9, 10, 11]
    group.move(6)
    assert next(batches).tolist() == [48, 49, 50, 51]


def test_other_loaders_are_passed_through_again_and_again() -> None:
    batches = endless_batches([1, 2], FakeGroup())
    assert take(batches, 5) == [1, 2, 1, 2, 1]
    with pytest.raises(CadreError, match="the loader has no batches"):
        next(endless_batches([], FakeGroup()))


def test_data_set_without_workers_moves_with_the_group() -> None:
    group = FakeGroup(groups=2)
    samples = iter(PositionDataset(group, range(1000), (0, 1), shuffle=False, seed=0))
    assert next(samples) == 0
    group.move(10)
    assert take(samples, 5) == [80, 81, 82, 83, 88]


def test_persistent_workers_are_refused() -> None:
    dataset = PositionDataset(FakeGroup(), range(8), (0, 1), shuffle=False, seed=0)
    loader = torch.utils.data.DataLoader(dataset, num_workers=1, persistent_workers=True)
    with pytest.raises(CadreError, match="pass persistent_workers=False"):
        next(endless_batches(loader, FakeGroup()))
