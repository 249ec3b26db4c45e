"""Finds the run that a program joins, or submits it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from cadre._parameters import with_model
from cadre._ranks import made_by_rank_0
from cadre.client import ENDED, Client, RunSpec, is_run_file
from cadre.errors import CadreError

Connect = Callable[[], Client]


def find_or_submit(
    connect: Connect, run: str | RunSpec, parameters: list[dict[str, Any]], test_samples: int, restart: bool
) -> tuple[str, bool]:
    """The id or name of the run, and whether it has ended already.

    A description is submitted with the model's parameters, unless a run of its name exists. All ranks
    call it.
    """
    if not isinstance(run, str) or is_run_file(run):
        spec = run if isinstance(run, Mapping) else Path(run)
        return made_by_rank_0(lambda: _submit(connect, spec, parameters, test_samples, join_ended=not restart))
    if restart:
        raise CadreError(f"restart=True submits a new run, which '{run}' does not describe")
    return run, made_by_rank_0(lambda: _has_ended(connect, run, ["RUN_STATE_DONE"]))


def _submit(
    connect: Connect, run: RunSpec, parameters: list[dict[str, Any]], test_samples: int, *, join_ended: bool
) -> tuple[str, bool]:
    with connect() as client:
        read = client.read(run)
        completed = with_model(read, parameters, test_samples)
        # The coordinator's errors about a file have a line, if it is submitted unchanged.
        try:
            answer = client.submit_or_join(run if completed is read else completed, join_ended=join_ended)
        except CadreError as error:
            if not (join_ended and read.get("name") and _has_ended(connect, read["name"], ENDED)):
                raise
            raise CadreError(f"{error}; restart=True submits a new run") from None
    return answer["run"], answer["ended"]


def _has_ended(connect: Connect, run: str, ends: Container[str]) -> bool:
    """Whether the run of this id or name is in one of these states; False if this program may not know."""
    with connect() as client:
        try:
            return client.run_status(run)["state"] in ends
        except CadreError:
            # The run may not exist yet, or the certificate may not permit the question; the attempt to join decides.
            return False
