"""What a program reports on its training."""

from __future__ import annotations

import ctypes

import torch

from cadre import _library
from cadre._state import TrainingState
from cadre.errors import CadreError


class Reports(TrainingState):
    """The reports of a group, beside its state."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        # Values on devices, which are read at the next boundary.
        self._reported: list[tuple[str, torch.Tensor]] = []

    def _check(self, result: int) -> None:
        if result == _library.ERROR:
            raise CadreError(self._error())

    def _error(self) -> str:
        return self._library.cadre_group_error(self._handle).decode()

    def report(
        self,
        *,
        loss: float | torch.Tensor | None = None,
        tokens: int | None = None,
        rate: float | None = None,
        **metrics: float | torch.Tensor,
    ) -> None:
        """Reports on one or more steps, for status, history and metrics of the run.

        `loss`: of training. `tokens`: number of tokens that the whole group has trained since the last
        report. `rate`: the learning rate. `metrics`: other values by name, such as `gradient_norm`. The
        means since the last boundary count, in a program of several ranks those of rank 0. Not every
        step need be reported. A tensor on a device is read at the next boundary, so that the call does
        not wait for the device. Losses and metrics that are not finite do not count.
        """
        if self._handle is None:
            return
        if tokens is not None:
            self._check(self._library.cadre_group_report_tokens(self._handle, tokens))
        for name, value in {"loss": loss, "rate": rate, **metrics}.items():
            if value is None:
                continue
            if isinstance(value, torch.Tensor):
                value = value.detach()
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                # A copy, since recorded graphs overwrite their outputs in the next step.
                self._reported.append((name, value.clone()))
            else:
                self._report(name, float(value))

    def _report(self, name: str, value: float) -> None:
        if name == "loss":
            self._library.cadre_group_report_loss(self._handle, value)
        else:
            self._check(self._library.cadre_group_report_metric(self._handle, name.encode(), value))

    # Waits for the device, so it is not called between the steps that a round overlaps.
    def _report_device_values(self) -> None:
        for name, value in self._reported:
            self._report(name, value.item())
        self._reported.clear()

    def alive(self) -> None:
        """Reports that the program works although no step ends, as in a long evaluation."""
        if self._handle is not None:
            self._library.cadre_group_alive(self._handle)
