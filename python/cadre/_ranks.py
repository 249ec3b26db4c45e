"""The ranks of a program of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from cadre.errors import CadreError

Made = TypeVar("Made")


def ranks_of_program() -> tuple[int, int]:
    """This rank and the number of ranks of the program."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def made_by_rank_0(make: Callable[[], Made]) -> Made:
    """What rank 0 has made, on all ranks. Raises its error on all ranks."""
    rank, ranks = ranks_of_program()
    made: list[Any] = [None]
    if rank == 0:
        try:
            made = [make()]
        except (CadreError, OSError, ValueError) as error:
            made = [error]
        except Exception as error:
            # The other ranks need not be able to read it.
            made = [CadreError(f"{type(error).__name__}: {error}")]
    if ranks > 1:
        torch.distributed.broadcast_object_list(made, src=0)
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]


def of_all_ranks(own: Made) -> list[Made]:
    """What the ranks have, by rank. A collective."""
    _, ranks = ranks_of_program()
    if ranks == 1:
        return [own]
    gathered: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(gathered, own)
    return gathered
