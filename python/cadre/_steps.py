"""Counts the steps of an optimizer."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch

from cadre.errors import CadreError

# The attributes in which wrappers have the optimizer that they wrap.
_INNER = ("optimizer", "optim")
# More than any program has around an optimizer; ends a cycle of wrappers.
_MAX_WRAPPERS = 16


def _has_hooks(optimizer: Any) -> bool:
    """Whether PyTorch calls the hooks of this object after its steps."""
    return (
        isinstance(optimizer, torch.optim.Optimizer)
        # Not those of a wrapped optimizer.
        and "_optimizer_step_post_hooks" in vars(optimizer)
        and getattr(type(optimizer).step, "hooked", False)
    )


def find_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """Returns the optimizer whose steps count, which may be within wrappers such as Accelerate's.

    Raises CadreError if there is none.
    """
    found = optimizer
    for _ in range(_MAX_WRAPPERS):
        if type(found).__module__.split(".")[0] == "deepspeed":
            # It steps through parts of the parameters one after the other.
            raise CadreError(f"{type(found).__name__} of DeepSpeed is not supported; use fully_shard")
        if _has_hooks(found):
            return found
        inner = (getattr(found, name, None) for name in _INNER)
        found = next((one for one in inner if one is not None), None)
        if found is None:
            break
    raise CadreError(
        f"{type(optimizer).__module__}.{type(optimizer).__qualname__} is not an optimizer whose steps PyTorch "
        "reports, and has none in its attribute 'optimizer'; pass the torch.optim.Optimizer whose step() "
        "updates the parameters"
    )


def find_optimizers(optimizers: Any) -> list[torch.optim.Optimizer]:
    """Returns the optimizers whose steps count, of one or a list. Raises CadreError as find_optimizer."""
    several = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
    if not several:
        raise CadreError("the list of optimizers is empty")
    return list({id(one): one for one in map(find_optimizer, several)}.values())


class StepHooks:
    """Calls `stepped` after each step of an optimizer, until they are removed.

    PyTorch calls the hooks of an optimizer in the step of its class and in those of base classes that
    this one calls. Such calls are part of one step. They are told apart by the frames of the calls: a
    call that an exception has ended is in no frame's callers any more.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, stepped: Callable[[], None]) -> None:
        self._stepped = stepped
        # The calls of step() that have begun, outermost first.
        self._calls: list[FrameType] = []
        self._handles = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._calls.clear()

    def _before(self, *_: object) -> None:
        caller = sys._getframe(1)
        if self._calls:
            running = set()
            frame: FrameType | None = caller
            while frame is not None:
                running.add(frame)
                frame = frame.f_back
            self._calls = [call for call in self._calls if call in running]
        self._calls.append(caller)

    def _after(self, *_: object) -> None:
        caller = sys._getframe(1)
        # A compiled step may have continued in another frame.
        ended = self._calls.index(caller) if caller in self._calls else -1
        del self._calls[ended:]
        if not self._calls:
            self._stepped()


class JointSteps:
    """Calls `stepped` whenever each of several optimizers has made a step since the last call."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], stepped: Callable[[], None]) -> None:
        self._stepped = stepped
        self._missing = set(range(len(optimizers)))
        self._count = len(optimizers)
        self._hooks: list[StepHooks] = []
        try:
            for number, optimizer in enumerate(optimizers):
                self._hooks.append(StepHooks(optimizer, functools.partial(self._on_step, number)))
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        for hooks in self._hooks:
            hooks.remove()

    def _on_step(self, number: int) -> None:
        self._missing.discard(number)
        if not self._missing:
            self._missing = set(range(self._count))
            self._stepped()


class LeftOutSteps:
    """Counts the steps that a GradScaler leaves out: each lowers its scale."""

    def __init__(self, scaler: torch.amp.GradScaler | None) -> None:
        self._scaler = scaler
        self._scale: float | None = None
        self._count = 0

    def count(self) -> int:
        """Called once a step at least."""
        if self._scaler is not None:
            scale = self._scaler.get_scale()
            self._count += self._scale is not None and scale < self._scale
            self._scale = scale
        return self._count
