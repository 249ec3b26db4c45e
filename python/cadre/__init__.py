"""Cadre: training across slow links, for programs with a training loop of their own.

    with cadre.attach(model, optimizer, coordinator="host:7000", run=run) as group:
        for inputs, labels in batches:
            ...
            optimizer.step()

docs/pytorch.md describes the package. Client needs no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadre.client import Client
from cadre.errors import CadreError, Left, RunEnded

if TYPE_CHECKING:
    from cadre._attach import Group, attach

__all__ = ["CadreError", "Client", "Group", "Left", "RunEnded", "attach"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("attach", "Group"):
        try:
            from cadre import _attach
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"cadre.{name} requires PyTorch: {error}") from error
        return getattr(_attach, name)
    raise AttributeError(f"module 'cadre' has no attribute '{name}'")
