"""Checks what a program's evaluation returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cadre.errors import CadreError

# Evaluates test samples [begin, end): their accuracy, and their mean loss. Numbers, or tensors and
# arrays of one element.
Evaluate = Callable[[int, int], "tuple[float, float]"]


def checked_result(result: Any) -> tuple[float, float]:
    """The accuracy and loss that a program's evaluation returned. Raises CadreError."""
    try:
        accuracy, loss = (float(value) for value in result)
    except (TypeError, ValueError, RuntimeError):
        accuracy = loss = math.nan
    # Beyond 1 by rounding.
    if not -1e-6 <= accuracy <= 1 + 1e-6 or not math.isfinite(loss):
        raise CadreError(f"evaluate returned {result!r}; it must return the accuracy, from 0 to 1, and the "
                         "mean loss, a finite number")
    return min(max(accuracy, 0.0), 1.0), loss
