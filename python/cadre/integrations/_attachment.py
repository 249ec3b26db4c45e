"""What the callbacks of trainers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cadre._attach import Group, Optimizers, attach
from cadre._samples import Order, PositionDataset, PositionSampler, Sequence
from cadre.errors import CadreError


class Attachment:
    """A group that is attached when a trainer begins. Options are those of cadre.attach."""

    group: Group | None

    def __init__(self, **options: Any) -> None:
        if "run" not in options or "coordinator" not in options:
            raise CadreError("the callback needs coordinator= and run=")
        self.group = None
        self._options = options

    def begin(self, model: torch.nn.Module, optimizer: Optimizers, *, steps: int, batch: int | None = None) -> Group:
        """Attaches the trainer's model, and returns when its group has begun.

        `batch`, `steps`: batch_per_group and stop.steps of a run that is given as a mapping without them,
        unless they are not known (None, or not positive).
        """
        run = self._options["run"]
        if isinstance(run, Mapping):
            known: dict[str, Any] = {"stop": {"steps": steps}} if steps > 0 else {}
            if batch is not None:
                known["batch_per_group"] = batch
            run = {**known, **run}
        if self.group is not None:
            # An exception may have ended the trainer, without another call.
            self.group.close("the trainer begins again")
        self.group = attach(model, optimizer, **{**self._options, "run": run}).start()
        return self.group

    def sampler(self, dataset: Any, *, shuffle: bool = True, seed: int = 0) -> PositionSampler:
        """As Group.sampler, for a loader that is made before the trainer begins; one rank only."""
        return PositionSampler(self, Order(len(dataset), shuffle=shuffle, seed=seed), (0, 1))

    def dataset(self, source: Any, *, shuffle: bool | None = None, seed: int = 0) -> PositionDataset:
        """As Group.dataset, for a trainer that divides the samples of an iterable data set among ranks."""
        return PositionDataset(self, source, (0, 1), seed=seed, shuffle=shuffle)

    @property
    def sequence(self) -> Sequence | None:
        return None if self.group is None else self.group.sequence

    def current_sequence(self) -> Sequence:
        if self.group is None:
            raise CadreError("the trainer has not begun, so its group has no sample positions yet")
        return self.group.current_sequence()
