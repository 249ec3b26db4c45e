"""Where the training of a group stands."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from cadre import _library
from cadre.errors import CadreError


class TrainingState:
    """The properties of a group that describe the version from which it trains.

    They keep their last values when the group is closed.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        # Null: the group is closed, and `_final` and `_final_run` are the last values.
        self._handle: int | None = None
        self._final = _library.GroupState()
        self._final_run = ""

    def _keep_state(self) -> None:
        """Keeps the values for the time after the group is closed."""
        self._final = self._state()
        self._final_run = self.run

    def _state(self) -> _library.GroupState:
        if self._handle is None:
            return self._final
        state = _library.GroupState()
        self._library.cadre_group_get_state(self._handle, ctypes.byref(state))
        return state

    @property
    def run(self) -> str:
        """The id of the run; empty before its first version."""
        return self._final_run if self._handle is None else self._library.cadre_group_run(self._handle).decode()

    @property
    def step(self) -> int:
        """Steps since the start of the run."""
        return self._state().step

    @property
    def next_boundary(self) -> int:
        """The step after which the group contributes next."""
        return self._state().next_boundary

    @property
    def total_steps(self) -> int:
        """Steps of the whole run; 0 if they are not known."""
        return self._state().total_steps

    @property
    def version(self) -> int:
        """The version from which the group trains."""
        return self._state().version

    @property
    def digest(self) -> str:
        """The digest of that version, equal in all groups."""
        return f"{self._state().digest:016x}"

    @property
    def participants(self) -> int:
        """Number of groups whose contributions that version contains."""
        return self._state().participants

    @property
    def group(self) -> int:
        """The number of this group in the run."""
        return self._state().group

    @property
    def groups(self) -> int:
        """Number of groups among which the samples are divided."""
        return self._state().groups

    @property
    def discarded_steps(self) -> int:
        """Steps of this group that no version contains, since it was attached."""
        return self._state().discarded_steps

    @property
    def connected(self) -> bool:
        """Whether the coordinator can be reached."""
        return bool(self._state().connected)

    def state_dict(self) -> dict[str, Any]:
        """Where training stands, to be saved beside the states of the optimizer.

        The values themselves are stored by the aggregators: a program that attaches again continues
        from the newest version.
        """
        state = self._state()
        return {
            "run": self.run,
            "version": state.version,
            "step": state.step,
            "digest": self.digest,
            "sample_position": state.sample_position,
            "discarded_steps": state.discarded_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Checks that a saved state belongs to this run. Raises CadreError if it does not.

        The optimizer's states then belong to version `state["version"]`, and are as old as
        `self.step - state["step"]` steps.
        """
        if state["run"] != self.run:
            raise CadreError(f"the state is of run {state['run']}, this group trains {self.run}")
        if state["version"] > self.version:
            raise CadreError(f"the state is of version {state['version']}, which is newer than "
                             f"version {self.version} of the run")
