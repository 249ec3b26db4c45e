"""Reports what a program waits for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cadre._library import GroupState

_log = logging.getLogger("cadre")
# Seconds after which a wait is reported as usual, and as a warning; the warning is repeated after ten
# times as long.
_INFORM = 5.0
_WARN = 15.0


def describe_wait(state: GroupState, run: str, problem: str) -> str:
    """What a program that waits in a boundary waits for.

    `problem`: why it is not connected, or else what its group waits for.
    """
    if not state.connected:
        return f"run {run}: waiting for the coordinator: {problem}"
    if problem:
        return f"run {run}: {problem}"
    if state.total_steps == 0 and state.version == 0:
        return f"run {run}: waiting for a group of this program to begin"
    return (f"run {run}: waiting at step {state.step}, version {state.version}, for the aggregators, and "
            "for the other groups and ranks")


class WaitReport:
    """Logs a wait: after 5 s, after 15 s as a warning, and then whenever the reason changes, or every
    150 s."""

    def __init__(self) -> None:
        self._inform_at: float | None = time.monotonic() + _INFORM
        self._warn_at = time.monotonic() + _WARN
        # A change of the reason is reported sooner than a repetition.
        self._change_at = self._warn_at
        self._reported: str | None = None

    def poll(self, describe: Callable[[], str]) -> None:
        """Called repeatedly during the wait."""
        now = time.monotonic()
        if self._inform_at is not None and now > self._inform_at:
            self._inform_at = None
            _log.info("%s", describe())
        if now <= self._change_at:
            return
        reason = describe()
        if now > self._warn_at or reason != self._reported:
            _log.warning("%s", reason)
            self._reported = reason
            self._change_at = now + _WARN
            self._warn_at = now + 10 * _WARN
