"""Keeps groups out of forked children, such as those of multiprocessing."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from typing import Protocol


class Forked(Protocol):
    """What has a part in this process that its forked children must not use."""

    def before_fork(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


_known: weakref.WeakSet[Forked] = weakref.WeakSet()
# The signal masks before the forks that are under way, by thread. A SIGTERM that reaches a child early
# waits until the child has its own handler.
_masks: dict[int, set[signal.Signals]] = {}


def add(one: Forked) -> None:
    """From now on, `one` is called around each fork of this process."""
    _known.add(one)


def _before() -> None:
    if not _known:
        return
    _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for one in list(_known):
        one.before_fork()


def _after_in_child() -> None:
    for one in list(_known):
        one.after_fork_in_child()
    _known.clear()
    _restore_mask()


def _restore_mask() -> None:
    mask = _masks.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


os.register_at_fork(before=_before, after_in_parent=_restore_mask, after_in_child=_after_in_child)
