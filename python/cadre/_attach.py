"""Joins a PyTorch training loop to a run."""

from __future__ import annotations

import ctypes
import enum
import hashlib
import itertools
import logging
import math
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch

from cadre import _library
from cadre.client import Client, RunSpec
from cadre.errors import CadreError, Left, RunEnded

_log = logging.getLogger("cadre")
# How often a waiting program looks for signals, in seconds.
_POLL = 0.2

# Evaluates test samples [begin, end): their accuracy, and their mean loss.
Evaluate = Callable[[int, int], tuple[float, float]]


def _plain_name(name: str) -> str:
    """The parameter's name without what DistributedDataParallel and torch.compile add to it."""
    for wrapper in ("module.", "_orig_mod."):
        while name.startswith(wrapper):
            name = name[len(wrapper):]
    return name.replace("._orig_mod.", ".")


def _is_dtensor(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of the tensor."""
    return (tensor.to_local() if _is_dtensor(tensor) else tensor).detach()


def _intervals(whole: Sequence[int], part: Sequence[int], offset: Sequence[int]) -> list[tuple[int, int]]:
    """The intervals of elements of a tensor of shape `whole` that a part of it has, row-major."""
    if 0 in part:
        return []
    # The part has whole slices of the dimensions after `split`.
    split = max((d for d in range(len(whole)) if part[d] != whole[d]), default=0)
    size = math.prod(part[split:])
    intervals = []
    for index in itertools.product(*(range(o, o + n) for o, n in zip(offset[:split], part[:split]))):
        begin = 0
        for position, extent in zip((*index, *offset[split:]), whole):
            begin = begin * extent + position
        intervals.append((begin, begin + size))
    return intervals


def _parts_of(name: str, tensor: Any) -> list[tuple[int, int]]:
    """The intervals of elements of a DTensor that this rank has, in the order of its local tensor."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    # Neither partial sums, nor strided shards, which need not be boxes.
    if any(type(placement) not in (Replicate, Shard) for placement in tensor.placements):
        raise CadreError(
            f"parameter '{name}' has placements {tensor.placements} on a mesh of shape "
            f"{tuple(tensor.device_mesh.shape)}; only Replicate and Shard are possible"
        )
    if tensor.device_mesh.get_coordinate() is None:
        return []
    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    held = tuple(tensor.to_local().shape)
    if tuple(shape) != held:
        raise CadreError(
            f"parameter '{name}' has a local part of shape {held}; placements {tensor.placements} of "
            f"shape {tuple(tensor.shape)} have {tuple(shape)} here"
        )
    return _intervals(tensor.shape, shape, offset)


def _digest(tensor: Any) -> str:
    """A digest of all values of a frozen parameter. A collective for a DTensor."""
    whole = tensor.full_tensor() if _is_dtensor(tensor) else tensor
    values = whole.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(values.numpy(), digest_size=8).hexdigest()


class _Role(enum.Enum):
    """How a run treats a parameter or buffer."""

    TRAINED = "averaged, coded and accelerated as the run requires"
    STATISTIC = "only averaged"
    FROZEN = "compared by its digest when a program joins"


class _Found(NamedTuple):
    """A parameter or buffer of a module."""

    name: str
    tensor: torch.Tensor
    role: _Role

    def to_spec(self, digests: Mapping[str, str]) -> dict[str, Any]:
        """The fields of OpaqueParameter (proto/cadre/v1/run.proto)."""
        spec: dict[str, Any] = {"name": self.name, "shape": list(self.tensor.shape)}
        if self.role is _Role.FROZEN:
            return {**spec, "frozen_digest": digests[self.name]}
        return {**spec, "trained": self.role is _Role.TRAINED}


@dataclass
class _Parameter:
    """A parameter or buffer that is exchanged, and the memory through which the library does it."""

    name: str
    tensor: torch.Tensor
    trained: bool
    shape: tuple[int, ...]
    dtype: torch.dtype
    memory: torch.Tensor

    def aliased(self) -> bool:
        local = _local(self.tensor)
        return local.data_ptr() == self.memory.data_ptr() and local.dtype == torch.float32

    @staticmethod
    def of(found: _Found) -> _Parameter:
        name, tensor, role = found
        local = _local(tensor)
        plain = local.device.type == "cpu" and local.dtype == torch.float32 and local.is_contiguous()
        memory = (
            local.view(-1)
            if plain
            else torch.empty(
                local.numel(), dtype=torch.float32, pin_memory=local.device.type == "cuda"
            )
        )
        trained = role is _Role.TRAINED
        return _Parameter(name, tensor, trained, tuple(tensor.shape), tensor.dtype, memory)


def _parameters_of(model: torch.nn.Module) -> list[_Found]:
    """Parameters and the floating-point buffers of the state, in the model's order."""
    found = [
        _Found(_plain_name(name), parameter, _Role.TRAINED if parameter.requires_grad else _Role.FROZEN)
        for name, parameter in model.named_parameters()
    ]
    persistent = model.state_dict(keep_vars=True).keys()
    for name, buffer in model.named_buffers():
        if name in persistent and buffer.is_floating_point():
            found.append(_Found(_plain_name(name), buffer, _Role.STATISTIC))
    return found


def _with_model(
    run: Mapping[str, Any], parameters: list[dict[str, Any]], test_samples: int
) -> Mapping[str, Any]:
    """The run with these parameters, unless it has a model."""
    opaque = run.get("model", {"opaque": {}}).get("opaque")
    if opaque is None or "parameter" in opaque:
        return run
    model = {"opaque": {"test_samples": test_samples, **opaque, "parameter": parameters}}
    return {**run, "model": model}


def _ranks() -> tuple[int, int]:
    """This rank and the number of ranks of the program."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _shared_by_ranks(value: Any) -> Any:
    """The value of rank 0."""
    if _ranks()[1] == 1:
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


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
        if getattr(optimizer, "_cadre_group", None) is not None:
            raise CadreError("the optimizer is attached to a group already; detach it first")
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
        self._hook: Any = None
        self._leaving = False
        self._ended = False
        # Its loop is `for step in group`, which ends by itself.
        self._iterates = False
        self._rank, self._ranks = _ranks()
        found = _parameters_of(model)
        if not any(one.role is _Role.TRAINED for one in found):
            raise CadreError("the model has no parameters that require gradients")
        digests = {one.name: _digest(one.tensor) for one in found if one.role is _Role.FROZEN}
        if isinstance(run, Mapping):
            run = _with_model(run, [one.to_spec(digests) for one in found], test_samples)
        if not isinstance(run, str):
            run = _shared_by_ranks(
                self._submit(run, coordinator, operator_tls or tls, insecure)
                if self._rank == 0
                else None
            )
        program = _shared_by_ranks(uuid.uuid4().hex)
        options = _library.GroupOptions(
            coordinator=coordinator.encode(),
            tls=_library.encode(tls),
            insecure=int(insecure),
            run=run.encode(),
            program=program.encode(),
            name=(name or f"{socket.gethostname()}-{os.getpid()}").lower().encode(),
            ranks=self._ranks,
            rank=self._rank,
            listen=_library.encode(listen),
            advertise=_library.encode(advertise),
            dial_seconds=timeout or 30.0,
            test_samples=test_samples,
        )
        self._handle = self._library.cadre_group_open(ctypes.byref(options))
        self._parameters: list[_Parameter] = []
        for one in found:
            if one.role is _Role.FROZEN:
                self._register_frozen(one, digests[one.name])
            else:
                self._parameters.append(_Parameter.of(one))
                self._register(self._parameters[-1])

    @staticmethod
    def _submit(run: RunSpec, coordinator: str, tls: str | None, insecure: bool) -> str:
        with Client(coordinator, tls=tls, insecure=insecure) as client:
            return client.submit(run, join_existing=True)

    def _register_frozen(self, found: _Found, digest: str) -> None:
        shape = (ctypes.c_uint64 * found.tensor.dim())(*found.tensor.shape)
        self._check(
            self._library.cadre_group_add_frozen(
                self._handle, found.name.encode(), shape, len(shape), digest.encode()
            )
        )

    def _register(self, parameter: _Parameter) -> None:
        shape = (ctypes.c_uint64 * len(parameter.shape))(*parameter.shape)
        sharded = _is_dtensor(parameter.tensor)
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
        for begin, end in _parts_of(parameter.name, parameter.tensor):
            self._check(self._library.cadre_group_add_part(self._handle, begin, end, values))
            values += (end - begin) * parameter.memory.element_size()

    # ---- The loop

    def __iter__(self) -> Iterator[int]:
        """Yields the number of each step until the run ends, while the group is attached."""
        self._iterates = True
        with self:
            while not self._ended:
                yield self.step
            if self._leaving:
                raise Left

    def __enter__(self) -> Group:
        try:
            # Before it joins, so that a program that is a member does not end by the signal itself.
            if self._handle_signals and threading.current_thread() is threading.main_thread():
                self._handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._on_sigterm)
            self._check(self._library.cadre_group_join(self._handle))
            self._boundary(self._timeout)
        except Left:
            self.close("the program was terminated")
            raise SystemExit(128 + signal.SIGTERM) from None
        except BaseException:
            self.close("could not begin")
            raise
        self._optimizer._cadre_group = self  # type: ignore[attr-defined]
        self._hook = self._optimizer.register_step_post_hook(self._after_step)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        left = kind is not None and issubclass(kind, (RunEnded, Left))
        reason = "the program has ended its loop" if kind is None or left else kind.__name__
        terminated = self._leaving and kind is not None and issubclass(kind, Left)
        self.close(reason)
        if terminated:
            raise SystemExit(128 + signal.SIGTERM)
        return left

    def close(self, reason: str = "closed") -> None:
        """Leaves the run now. Steps since the last version are lost."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._optimizer._cadre_group = None  # type: ignore[attr-defined]
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        if self._handle is not None:
            self._final = self._state()
            handle, self._handle = self._handle, None
            self._library.cadre_group_close(handle, reason.encode())

    def _on_sigterm(self, *_: int | FrameType | None) -> None:
        self._leaving = True
        self.leave()

    def leave(self) -> None:
        """Leaves at the next boundary, after the group has contributed and adopted the version."""
        if self._handle is not None:
            self._library.cadre_group_leave(self._handle)

    # ---- Steps and boundaries

    def _after_step(self, *_: object) -> None:
        if self._handle is not None and self._library.cadre_group_step(self._handle):
            self._boundary(None)

    def _boundary(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        discarded = self._state().discarded_steps
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
                raise TimeoutError(f"run {self.run or ''}: no group of it began within {timeout} s")

    def _check_unchanged(self) -> None:
        """Raises CadreError if the model has other parameters than when it was attached."""
        found = _parameters_of(self._model)
        now = {one.name: one.tensor for one in found if one.role is not _Role.FROZEN}
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
        self._copy(lambda memory, local, asynchronous: memory.copy_(local, non_blocking=asynchronous))
        self._report_device_losses()

    def _store(self) -> None:
        self._copy(lambda memory, local, asynchronous: local.copy_(memory, non_blocking=asynchronous))

    def _copy(self, copy: Any) -> None:
        # Copies between pinned memory and a device follow the steps on its current stream. The library
        # uses the memory as soon as this function returns.
        devices = set()
        with torch.no_grad():
            for parameter in self._parameters:
                if parameter.aliased():
                    continue
                local = _local(parameter.tensor)
                asynchronous = local.device.type == "cuda"
                copy(parameter.memory.view(local.shape), local, asynchronous)
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
        accuracy, loss = self._evaluate_samples(state.evaluate_begin, state.evaluate_end)
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
        the model, or the path of a run file: it is then submitted, unless a run of that name has not
        ended.
      tls: folder with a worker's certificate; or insecure=True.
      operator_tls: folder with an operator's certificate, to submit the run.
      name: of this process in the status. Default: host and process id.
      listen, advertise: address for the other ranks of a program with several ranks.
      timeout: seconds to wait for the coordinator and for the group's begin. Default: 30 for the
        coordinator, no limit for the group.
      handle_signals: whether SIGTERM is handled. Default: True.
      evaluate: a function (begin, end) that returns accuracy and mean loss of the model on test
        samples [begin, end), and test_samples, their number. It is called with versions that the
        model has just adopted, after each interval of `evaluation` and at the end of the run; the
        groups divide the samples. All ranks are called alike; the result of rank 0 counts.

    With torch.distributed initialized, all ranks call it, and form one group: ranks of
    DistributedDataParallel divide the model, those of fully_shard exchange their shards.
    """
    return Group(model, optimizer, **options)
