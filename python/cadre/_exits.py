"""Ends the part of a program in its run if the program never does so itself."""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from typing import Any

from cadre.errors import Left, RunEnded

# Characters of the reason that the coordinator receives.
MAX_REASON = 200


def describe_exception(kind: type[BaseException], value: BaseException | None) -> str:
    """An exception as the reason why a program leaves."""
    return f"{kind.__name__}: {value}"[:MAX_REASON]


def reason_of(kind: type[BaseException] | None, value: BaseException | None) -> str:
    """Why a program leaves, for the status of the run."""
    if kind is None or issubclass(kind, (RunEnded, Left)):
        return "the program has ended its loop"
    if issubclass(kind, GeneratorExit):
        # The generator of `for step in group` was closed, which does not say why.
        return "the program has left its loop by break or by an exception"
    return describe_exception(kind, value)


def _reason() -> str:
    # The interpreter stores the exception that ends a program. In interactive use it may be an older one.
    failure = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    if failure is not None:
        return describe_exception(type(failure), failure)
    return "the program has ended, or has dropped the group, without leaving its loop"


def _close(library: ctypes.CDLL, handle: int, process: int) -> None:
    # A forked child has the handle, but not the threads of the library.
    if os.getpid() == process:
        library.cadre_group_close(handle, _reason().encode())


def close_with(owner: Any, library: ctypes.CDLL, handle: int) -> weakref.finalize:
    """Closes the handle of a group when its owner is freed, or when the interpreter exits.

    The owner calls `detach` of the result when it closes the handle itself.
    """
    return weakref.finalize(owner, _close, library, handle, os.getpid())
