"""Keeps schedulers of PyTorch at the step of a group."""

from __future__ import annotations

import copy
import logging
import warnings
from typing import Any

from cadre.errors import CadreError


_log = logging.getLogger("cadre")


class Follower:
    """Keeps a scheduler at a step, although steps of the run may be left out or repeated.

    The program steps the scheduler as usual. After a group has begun or adopted a version, the
    scheduler has made another number of steps; it then starts again from its first state and makes as
    many steps as the run, because most schedulers compute a rate from the one before.
    """

    def __init__(self, scheduler: Any) -> None:
        # Accelerate's wrapper steps the scheduler within it.
        scheduler = getattr(scheduler, "scheduler", scheduler)
        if not hasattr(scheduler, "last_epoch") or not hasattr(scheduler, "optimizer"):
            raise CadreError(f"{type(scheduler).__name__} is not a torch.optim.lr_scheduler.LRScheduler")
        if type(scheduler).__name__ == "ReduceLROnPlateau":
            raise CadreError("ReduceLROnPlateau depends on measured values, not on the step, so it cannot "
                             "follow a run")
        self._scheduler = scheduler
        # The first state to which it can return: that of a program that continues is later than step 0.
        self._first = scheduler.last_epoch
        self._state = copy.deepcopy(scheduler.state_dict())
        self._rates = [copy.copy(group["lr"]) for group in scheduler.optimizer.param_groups]

    def move_to(self, step: int) -> None:
        """Moves the scheduler to the step; a scheduler that was made later stays at its first one."""
        if step < self._first:
            _log.warning("the group is at step %d, but the scheduler began at step %d and stays there", step,
                         self._first)
            step = self._first
        if self._scheduler.last_epoch > step:
            self._scheduler.load_state_dict(copy.deepcopy(self._state))
            for group, rate in zip(self._scheduler.optimizer.param_groups, self._rates):
                group["lr"] = copy.copy(rate)
        with warnings.catch_warnings():
            # The optimizer of this process need not have made these steps.
            warnings.simplefilter("ignore")
            while self._scheduler.last_epoch < step:
                self._scheduler.step()
