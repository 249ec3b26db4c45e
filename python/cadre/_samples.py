"""The samples on which a group trains: samplers and data sets in the order of the run's positions.

A run has an endless sequence of sample positions. Position p is sample p % n of the p // n-th
permutation of n samples, or, of a data set that can only be read in order, the p-th sample of its
passes one after the other. Each step of a group takes `batch` consecutive positions, the next step
those after the positions of the other groups, so no position is used twice.

A DataLoader takes positions ahead of training. So a sampler counts on from the step at which its
iterator began, and begins anew after the group's own positions have moved in another way: because
the number of groups has changed, or because steps were discarded. `Group.batches` drops what the
loader has taken before; other loops train on these batches first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch

from cadre.errors import CadreError


class Sequence(NamedTuple):
    """The positions of a group from one step on."""

    # The first position of the step, and the number of positions of each step.
    position: int
    batch: int
    # The number of groups that share the sequence.
    groups: int

    def positions(self, part: int, parts: int) -> Iterator[int]:
        """The positions of one of `parts` equal parts of each step, without an end.

        Raises CadreError if the parts would not be equal.
        """
        if self.batch % parts != 0:
            raise CadreError(f"batch_per_group is {self.batch}, which {parts} ranks cannot share equally")
        share = self.batch // parts
        begin = self.position + part * share
        while True:
            yield from range(begin, begin + share)
            begin += self.groups * self.batch


class Positioned(Protocol):
    """What has a sequence of positions: a group."""

    @property
    def sequence(self) -> Sequence:
        """The positions from the current step on. The same object while training continues with them."""

    def current_sequence(self) -> Sequence:
        """The positions from the next step on. Raises CadreError before the group has begun."""


class Order:
    """The sample at each position, of a data set of `samples` samples."""

    def __init__(self, samples: int, *, shuffle: bool, seed: int) -> None:
        if samples <= 0:
            raise CadreError("the data set has no samples")
        self._samples = samples
        self._shuffle = shuffle
        self._seed = seed
        # The permutations of the newest epochs: the positions of a step may be in two.
        self._permutations: dict[int, torch.Tensor] = {}

    def __getitem__(self, position: int) -> int:
        epoch, index = divmod(position, self._samples)
        if not self._shuffle:
            return index
        if epoch not in self._permutations:
            for old in [one for one in self._permutations if one < epoch - 1]:
                del self._permutations[old]
            generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % 2**63)
            self._permutations[epoch] = torch.randperm(self._samples, generator=generator)
        return int(self._permutations[epoch][index])


class PositionSampler(torch.utils.data.Sampler[int]):
    """The indices of a group's samples, or of one rank's part of them, without an end."""

    def __init__(self, group: Positioned, order: Order, part: tuple[int, int]) -> None:
        self._group = group
        self._order = order
        self._part = part

    def __iter__(self) -> Iterator[int]:
        positions = self._group.current_sequence().positions(*self._part)
        sequence = self._group.sequence
        while True:
            if self._group.sequence is not sequence:
                sequence = self._group.sequence
                positions = self._group.current_sequence().positions(*self._part)
            yield self._order[next(positions)]


class PositionDataset(torch.utils.data.IterableDataset):
    """The samples of a group, or of one rank's part of them, without an end.

    A loader's workers divide them. They have a copy of this object, so they continue from the step at
    which the loader's iterator was made, as a source that can only be read in order does. Without
    workers, an indexed source follows the positions when they move.
    """

    def __init__(self, group: Positioned, source: Any, part: tuple[int, int], *, shuffle: bool | None,
                 seed: int) -> None:
        self._group: Positioned | None = group
        self._begin: Sequence | None = None
        self._source = source
        self._part = part
        indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
        if not indexed and shuffle:
            raise CadreError(f"{type(source).__name__} can only be read in order; pass shuffle=False, and "
                             "shuffle within it")
        # By default, a source that can be shuffled is.
        self._order = Order(len(source), shuffle=shuffle is not False, seed=seed) if indexed else None

    def __getstate__(self) -> dict[str, Any]:
        # A worker process that is not forked has no group.
        return {**self.__dict__, "_group": None, "_begin": self._start()}

    def _start(self) -> Sequence:
        if self._group is not None:
            return self._group.current_sequence()
        assert self._begin is not None, "set when it was copied"
        return self._begin

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        positions = self._start().positions(*self._part)
        chosen = (position for turn, position in enumerate(positions) if turn % workers == number)
        if self._order is None:
            return self._read(chosen)
        if worker is None and self._group is not None:
            return (self._source[index] for index in PositionSampler(self._group, self._order, self._part))
        return (self._source[self._order[position]] for position in chosen)

    def _read(self, positions: Iterator[int]) -> Iterator[Any]:
        """The samples at ascending positions of a source that can only be read in order."""
        samples = _endless(self._source)
        read = 0
        wanted = next(positions)
        if wanted > 0 and hasattr(self._source, "skip"):
            # The first pass may be shorter, so that what is skipped must not be counted blindly.
            skipped = iter(self._source.skip(wanted))
            first = next(skipped, None)
            if first is not None:
                samples = _continued(first, skipped, self._source)
                read = wanted
        for sample in samples:
            if read == wanted:
                yield sample
                wanted = next(positions)
            read += 1


def _endless(source: Any) -> Iterator[Any]:
    """The samples of one pass after the other. Raises CadreError if a pass has none."""
    while True:
        count = 0
        for sample in source:
            count += 1
            yield sample
        if count == 0:
            raise CadreError(f"{type(source).__name__} has no samples")


def _continued(first: Any, rest: Iterator[Any], source: Any) -> Iterator[Any]:
    yield first
    yield from rest
    yield from _endless(source)


def follows_positions(loader: Any) -> bool:
    """Whether a loader has the samples of a group's positions."""
    return isinstance(getattr(loader, "sampler", None), PositionSampler) or isinstance(
        getattr(loader, "dataset", None), PositionDataset
    )


def endless_batches(loader: Any, group: Positioned) -> Iterator[Any]:
    """The batches of one pass of a loader after the other.

    A loader that follows the positions begins anew when they have moved.
    """
    follows = follows_positions(loader)
    if follows and isinstance(loader.dataset, PositionDataset) and getattr(loader, "persistent_workers", False):
        raise CadreError("persistent workers keep the positions of their start; pass persistent_workers=False")
    passes = 0
    while True:
        if hasattr(getattr(loader, "sampler", None), "set_epoch"):
            loader.sampler.set_epoch(passes)
        sequence = group.sequence if follows else None
        count = 0
        for batch in loader:
            count += 1
            yield batch
            if follows and group.sequence is not sequence:
                break
        if count == 0:
            raise CadreError("the loader has no batches")
        passes += 1
