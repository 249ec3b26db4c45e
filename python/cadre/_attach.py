"""Joins a PyTorch training loop to a run."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from cadre import _forks, _library
from cadre._parameters import (
    Constants,
    Found,
    Parameter,
    Role,
    digest_of,
    is_dtensor,
    local_of,
    parameters_of,
    parts_of,
    refuse_unsupported,
    with_model,
)
from cadre._steps import StepHooks, find_optimizer
from cadre.client import Client, RunSpec
from cadre.errors import CadreError, Left, RunEnded

_log = logging.getLogger("cadre")
# How often a waiting program looks for signals, in seconds.
_POLL = 0.2

# Seconds after which a program reports what it waits for; then ten times as long.
_REPORT_WAIT = 15.0
# Characters of the reason for leaving that the coordinator receives.
_MAX_REASON = 200
# Turns of a loop without a step, which are more than those in which gradients are accumulated, or in
# which GradScaler finds its scale.
_MAX_TURNS = 1000

# Evaluates test samples [begin, end): their accuracy, and their mean loss. Numbers, or tensors and
# arrays of one element.
Evaluate = Callable[[int, int], tuple[float, float]]


def _ranks() -> tuple[int, int]:
    """This rank and the number of ranks of the program."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _made_by_rank_0(make: Callable[[], str]) -> str:
    """What rank 0 has made, on all ranks. Raises its CadreError or OSError on all ranks."""
    made: list[Any] = [None]
    if _ranks()[0] == 0:
        try:
            made = [make()]
        except (CadreError, OSError, ValueError) as error:
            made = [error]
    if _ranks()[1] > 1:
        torch.distributed.broadcast_object_list(made, src=0)
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]


def _is_run_file(run: str | RunSpec) -> bool:
    """Whether this is the path of a run file, and neither the id or name of a run nor a mapping."""
    return isinstance(run, os.PathLike) or (
        isinstance(run, str) and (os.sep in run or run.endswith(".textproto"))
    )


def _describe_wait(state: _library.GroupState, run: str, problem: str) -> str:
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


def _checked_result(result: Any) -> tuple[float, float]:
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


class Group:
    """The group of a training loop; made by cadre.attach.

    Used by the thread that trains. Its properties describe the version from which the group trains.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        coordinator: str,
        run: str | RunSpec,
        tls: str | None = None,
        operator_tls: str | None = None,
        insecure: bool = False,
        name: str | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        timeout: float | None = None,
        handle_signals: bool = True,
        evaluate: Evaluate | None = None,
        test_samples: int = 0,
    ) -> None:
        optimizer = find_optimizer(optimizer)
        self._refuse_attached(optimizer)
        refuse_unsupported(model)
        if (evaluate is None) != (test_samples == 0):
            raise CadreError("evaluate and test_samples must be given together")
        self._handle: int | None = None
        self._library = _library.load()
        self._optimizer = optimizer
        self._model = model
        self._timeout = timeout
        self._handle_signals = handle_signals
        self._handlers: dict[int, Any] = {}
        self._evaluate_samples = evaluate
        # Losses on devices, which are read when the values are fetched.
        self._losses: list[torch.Tensor] = []
        self._hooks: StepHooks | None = None
        self._leaving = False
        self._ended = False
        # Its loop is `for step in group`, which ends by itself.
        self._iterates = False
        self._rank, self._ranks = _ranks()
        self._constants = Constants(model)
        found = parameters_of(model, self._constants)
        if not any(one.role is Role.TRAINED for one in found):
            raise CadreError("the model has no parameters that require gradients")
        digests = {one.name: digest_of(one.tensor) for one in found if one.role is Role.FROZEN}
        if not isinstance(run, str) or _is_run_file(run):
            parameters = [one.to_spec(digests) for one in found]
            spec = run if isinstance(run, Mapping) else Path(run)
            run = _made_by_rank_0(lambda: self._submit(
                lambda read: with_model(read, parameters, test_samples),
                spec, coordinator, operator_tls or tls, insecure))
        self._awaited = run
        program = _made_by_rank_0(lambda: uuid.uuid4().hex)
        options = _library.GroupOptions(
            coordinator=coordinator.encode(),
            tls=_library.encode(tls),
            insecure=int(insecure),
            run=run.encode(),
            program=program.encode(),
            name=name.lower().encode() if name else None,
            ranks=self._ranks,
            rank=self._rank,
            listen=_library.encode(listen),
            advertise=_library.encode(advertise),
            dial_seconds=timeout or 30.0,
            test_samples=test_samples,
        )
        self._handle = self._library.cadre_group_open(ctypes.byref(options))
        self._parameters: list[Parameter] = []
        try:
            for one in found:
                if one.role is Role.FROZEN:
                    self._register_frozen(one, digests[one.name])
                else:
                    self._parameters.append(Parameter.of(one))
                    self._register(self._parameters[-1])
        except BaseException:
            self.close("could not register the parameters")
            raise

    @staticmethod
    def _refuse_attached(optimizer: torch.optim.Optimizer) -> None:
        if getattr(optimizer, "_cadre_group", None) is not None:
            raise CadreError("the optimizer is attached to a group already; close that group first")

    @staticmethod
    def _submit(
        complete: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        run: RunSpec,
        coordinator: str,
        tls: str | None,
        insecure: bool,
    ) -> str:
        """Submits the run, which `complete` gives its model."""
        with Client(coordinator, tls=tls, insecure=insecure) as client:
            read = client.read(run)
            completed = complete(read)
            # The coordinator's errors about a file have a line, if it is submitted unchanged.
            return client.submit(run if completed is read else completed, join_existing=True)

    def _register_frozen(self, found: Found, digest: str) -> None:
        shape = (ctypes.c_uint64 * found.tensor.dim())(*found.tensor.shape)
        self._check(
            self._library.cadre_group_add_frozen(
                self._handle, found.name.encode(), shape, len(shape), digest.encode()
            )
        )

    def _register(self, parameter: Parameter) -> None:
        shape = (ctypes.c_uint64 * len(parameter.shape))(*parameter.shape)
        sharded = is_dtensor(parameter.tensor)
        self._check(
            self._library.cadre_group_add_parameter(
                self._handle,
                parameter.name.encode(),
                shape,
                len(parameter.shape),
                int(parameter.trained),
                None if sharded else parameter.memory.data_ptr(),
            )
        )
        if not sharded:
            return
        values = parameter.memory.data_ptr()
        for begin, end in parts_of(parameter.name, parameter.tensor):
            self._check(self._library.cadre_group_add_part(self._handle, begin, end, values))
            values += (end - begin) * parameter.memory.element_size()

    # ---- The loop

    def __iter__(self) -> Iterator[int]:
        """Yields the number of each step until the run ends, while the group is attached."""
        self._refuse_attached(self._optimizer)
        self._iterates = True
        with self:
            turns = 0
            while not self._ended:
                step = self.step
                yield step
                turns = turns + 1 if self.step == step and not self._ended else 0
                if turns == _MAX_TURNS:
                    raise CadreError(
                        f"run {self.run}: {turns} turns of the loop have not ended step {step}, which begins "
                        f"at sample position {self.sample_position}: the optimizer made no step. "
                        "torch.amp.GradScaler leaves out steps whose gradients are not finite"
                    )
            if self._leaving:
                raise Left

    def __enter__(self) -> Group:
        if self._handle is None:
            raise CadreError("the group is closed; call cadre.attach again")
        # Another group may have been entered since this one was made.
        self._refuse_attached(self._optimizer)
        try:
            self._optimizer._cadre_group = self  # type: ignore[attr-defined]
            _forks.add(self)
            # Before it joins, so that a program that is a member does not end by the signal itself.
            if self._handle_signals and threading.current_thread() is threading.main_thread():
                self._handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._on_sigterm)
            self._check(self._library.cadre_group_join(self._handle))
            self._boundary(self._timeout)
            self._hooks = StepHooks(self._optimizer, self._after_step)
        except Left:
            self.close("the program was terminated")
            raise SystemExit(128 + signal.SIGTERM) from None
        except BaseException:
            self.close("could not begin")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, *_: object
    ) -> bool:
        left = kind is not None and issubclass(kind, (RunEnded, Left))
        if kind is None or left:
            reason = "the program has ended its loop"
        elif issubclass(kind, GeneratorExit):
            # The generator of `for step in group` was closed, which does not say why.
            reason = "the program has left its loop by break or by an exception"
        else:
            reason = f"{kind.__name__}: {value}"[:_MAX_REASON]
        terminated = self._leaving and kind is not None and issubclass(kind, Left)
        self.close(reason)
        if terminated:
            raise SystemExit(128 + signal.SIGTERM)
        return left

    def close(self, reason: str = "closed") -> None:
        """Leaves the run now. Steps since the last version are lost."""
        if self._handle is not None:
            self._final = self._state()
        handle = self._detach()
        if handle is not None:
            self._library.cadre_group_close(handle, reason.encode())

    def _detach(self) -> int | None:
        """Undoes what attaching has changed in this process. Returns the library's handle."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        if getattr(self._optimizer, "_cadre_group", None) is self:
            self._optimizer._cadre_group = None  # type: ignore[attr-defined]
        for number, handler in self._handlers.items():
            # None: it was not set from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._handlers.clear()
        handle, self._handle = self._handle, None
        return handle

    # A forked child is not part of the group, and must not call the library, whose threads it lacks.
    # Its optimizer, signal handlers and copy of the state are its own.
    def before_fork(self) -> None:
        self._final = self._state()

    def after_fork_in_child(self) -> None:
        self._detach()

    def _on_sigterm(self, *_: int | FrameType | None) -> None:
        self._leaving = True
        self.leave()

    def leave(self) -> None:
        """Leaves at the next boundary, after the group has contributed and adopted the version."""
        if self._handle is not None:
            self._library.cadre_group_leave(self._handle)

    # ---- Steps and boundaries

    def _after_step(self) -> None:
        if self._handle is not None and self._library.cadre_group_step(self._handle):
            self._boundary(None)

    def _boundary(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        discarded = self._state().discarded_steps
        report_at = time.monotonic() + _REPORT_WAIT
        reported = None
        while True:
            task = self._library.cadre_group_next(self._handle, _POLL)
            if task == _library.FETCH:
                self._fetch()
            elif task == _library.STORE:
                self._store()
            elif task == _library.EVALUATE:
                self._evaluate()
            elif task == _library.TRAIN:
                lost = self.discarded_steps - discarded
                if lost > 0:
                    _log.warning("%d steps of this group are in no version of run %s", lost, self.run)
                return
            elif task == _library.ENDED:
                self._ended = True
                if self._iterates:
                    return
                raise Left() if self._leaving else RunEnded()
            elif task == _library.ERROR:
                raise CadreError(self._error())
            elif deadline is not None and time.monotonic() > deadline:
                problem = self._error()
                raise TimeoutError(
                    f"run {self.run or self._awaited}: no group of it began within {timeout} s"
                    + (f": {problem}" if problem else "")
                )
            elif time.monotonic() > report_at or (
                # A change is reported sooner.
                reported is not None
                and time.monotonic() > report_at - 9 * _REPORT_WAIT
                and self._error() != reported
            ):
                reported = self._error()
                _log.warning("%s", _describe_wait(self._state(), self.run or self._awaited, reported))
                report_at = time.monotonic() + 10 * _REPORT_WAIT

    def _check_unchanged(self) -> None:
        """Raises CadreError if the model has other parameters than when it was attached."""
        self._constants.check_unchanged(self._model)
        found = parameters_of(self._model, self._constants)
        now = {one.name: one.tensor for one in found if one.role is not Role.FROZEN}
        for parameter in self._parameters:
            tensor = now.pop(parameter.name, None)
            before = f"{list(parameter.shape)} {parameter.dtype}"
            if tensor is None:
                raise CadreError(
                    f"parameter '{parameter.name}' was {before} when the model was attached, "
                    "and is missing or frozen now"
                )
            if tuple(tensor.shape) != parameter.shape or tensor.dtype != parameter.dtype:
                raise CadreError(
                    f"parameter '{parameter.name}' was {before} when the model was attached, "
                    f"and is {list(tensor.shape)} {tensor.dtype} now"
                )
            parameter.tensor = tensor
        for name, tensor in now.items():
            raise CadreError(
                f"parameter '{name}' {list(tensor.shape)} {tensor.dtype} was added, or was frozen, "
                "when the model was attached"
            )

    def _fetch(self) -> None:
        self._check_unchanged()
        self._copy(Parameter.fetch)
        self._report_device_losses()

    def _store(self) -> None:
        self._copy(Parameter.store)

    def _copy(self, copy: Callable[[Parameter, torch.Tensor, bool], None]) -> None:
        # Copies between pinned memory and a device follow the steps on its current stream. The library
        # uses the memory as soon as this function returns.
        devices = set()
        with torch.no_grad():
            for parameter in self._parameters:
                if parameter.aliased():
                    continue
                local = local_of(parameter.tensor)
                asynchronous = local.device.type == "cuda"
                copy(parameter, local, asynchronous)
                if asynchronous:
                    devices.add(local.device)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()

    def report(self, *, loss: float | torch.Tensor) -> None:
        """Reports the training loss of a step, for status and history of the run.

        The mean of the losses since the last boundary counts, in a program of several ranks those of
        rank 0. Not every step need be reported. A tensor on a device is read at the next boundary, so
        that the call does not wait for the device. Losses that are not finite do not count.
        """
        if self._handle is None:
            return
        if isinstance(loss, torch.Tensor) and loss.device.type != "cpu":
            # A copy, since recorded graphs overwrite their outputs in the next step.
            self._losses.append(loss.detach().clone())
        else:
            value = loss.item() if isinstance(loss, torch.Tensor) else loss
            self._library.cadre_group_report_loss(self._handle, value)

    # Waits for the device, so it is not called between the steps that a round overlaps.
    def _report_device_losses(self) -> None:
        for loss in self._losses:
            self._library.cadre_group_report_loss(self._handle, loss.item())
        self._losses.clear()

    def _evaluate(self) -> None:
        """Evaluates the samples that the coordinator has assigned to this group."""
        state = self._state()
        assert self._evaluate_samples is not None, "the library has checked the number of samples"
        accuracy, loss = _checked_result(
            self._evaluate_samples(state.evaluate_begin, state.evaluate_end)
        )
        samples = state.evaluate_end - state.evaluate_begin
        self._library.cadre_group_report_evaluation(
            self._handle, round(accuracy * samples), samples, loss * samples
        )

    def alive(self) -> None:
        """Reports that the program works although no step ends, as in a long evaluation."""
        if self._handle is not None:
            self._library.cadre_group_alive(self._handle)

    # ---- State

    def _check(self, result: int) -> None:
        if result == _library.ERROR:
            raise CadreError(self._error())

    def _error(self) -> str:
        return self._library.cadre_group_error(self._handle).decode()

    def _state(self) -> _library.GroupState:
        if self._handle is None:
            return self._final
        state = _library.GroupState()
        self._library.cadre_group_get_state(self._handle, ctypes.byref(state))
        return state

    @property
    def run(self) -> str:
        """The id of the run; empty before its first version."""
        return "" if self._handle is None else self._library.cadre_group_run(self._handle).decode()

    @property
    def ended(self) -> bool:
        """Whether the run has ended, or the group has left it."""
        return self._ended

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
    def sample_position(self) -> int:
        """Position of the first sample of the next step in the run's endless sequence of samples.

        The group uses the positions from here to here + batch_per_group. A position p is sample
        p % n of the p // n-th permutation of n samples; no other group has the same positions.
        """
        return self._state().sample_position

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


def attach(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any
) -> Group:
    """Makes a training loop a group of a run, while the returned context is open.

    Either `with cadre.attach(...) as group:` encloses the loop, or the loop is `for step in group:`,
    which enters the context and ends with the run. On entry the program joins the run; when its
    group begins, the model has the values of the run's newest version (those of the first group, in
    a run that has none yet). After every `every_steps` steps of the optimizer, its hook exchanges the
    model with the other groups. At the end of the run the hook ends the `with` block (with RunEnded,
    which the block handles), and the model has the last version. SIGTERM leaves at the next boundary,
    Ctrl-C immediately.

    Options:
      coordinator: "host:port".
      run: the id or name of a run; or a mapping with the fields of RunSpec, except the parameters of
        the model, or the path of a run file (a Path, or text that has a "/" or ends with .textproto):
        it is then submitted, unless a run of that name has not ended.
      tls: folder with a worker's certificate; or insecure=True.
      operator_tls: folder with an operator's certificate, to submit the run.
      name: of this process in the status. Default: host and process id.
      listen, advertise: address for the other ranks of a program with several ranks.
      timeout: seconds to wait for the coordinator and for the group's begin. Default: 30 for the
        coordinator, no limit for the group.
      handle_signals: whether SIGTERM is handled. Default: True.
      evaluate: a function (begin, end) that returns accuracy (0 to 1) and mean loss of the model on test
        samples [begin, end), and test_samples, their number. It is called with versions that the
        model has just adopted, after each interval of `evaluation` and at the end of the run; the
        groups divide the samples. All ranks are called alike; the result of rank 0 counts.

    With torch.distributed initialized, all ranks call it, and form one group: ranks of
    DistributedDataParallel divide the model, those of fully_shard exchange their shards.
    """
    return Group(model, optimizer, **options)
