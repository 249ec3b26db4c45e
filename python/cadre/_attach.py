"""Joins a PyTorch training loop to a run."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Union

import torch

from cadre import _exits, _forks, _library
from cadre._evaluation import Evaluate, checked_result
from cadre._notice import notice_seconds
from cadre._ranks import made_by_rank_0, ranks_of_program
from cadre._reports import Reports
from cadre._samples import Order, PositionDataset, PositionSampler, Sequence, endless_batches
from cadre._schedules import Follower
from cadre._steps import JointSteps, LeftOutSteps, find_optimizers
from cadre._submission import find_or_submit
from cadre._values import Values
from cadre._waits import WaitReport, describe_wait
from cadre.client import Client, RunSpec
from cadre.errors import CadreError, Left, RunEnded

Optimizers = Union[torch.optim.Optimizer, "list[torch.optim.Optimizer]"]

_log = logging.getLogger("cadre")
# How often a waiting program looks for signals, in seconds.
_POLL = 0.2
# Turns of a loop without a step: more than accumulate gradients, or in which GradScaler finds its scale.
_MAX_TURNS = 1000


def _end_loop(*_: object) -> None:
    """Ends a `with` block before a step changes the model of the last version."""
    raise RunEnded


class Group(Reports):
    """The group of a training loop; made by cadre.attach.

    Used by the thread that trains. Its properties describe the version from which the group trains.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizers,
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
        scaler: torch.amp.GradScaler | None = None,
        pipeline: bool = False,
        restart: bool = False,
        save_to: str | os.PathLike | None = None,
    ) -> None:
        self._optimizers = find_optimizers(optimizer)
        self._refuse_attached()
        if (evaluate is None) != (test_samples == 0):
            raise CadreError("evaluate and test_samples must be given together")
        self._notice = notice_seconds()
        super().__init__(_library.load())
        self._timeout = timeout
        self._handle_signals = handle_signals
        self._handlers: dict[int, Any] = {}
        self._evaluate_samples = evaluate
        self._left_out = LeftOutSteps(scaler)
        self._connect = functools.partial(Client, coordinator, tls=operator_tls or tls, insecure=insecure)
        self._save_to = save_to
        self._followers: list[Follower] = []
        self._hooks: JointSteps | None = None
        # Those of a `with` block of a run that has ended already.
        self._end_hooks: list[Any] = []
        self._leaving = self._finishing = self._ended = False
        # Whether the end of the run raises RunEnded in the program's loop.
        self._raises = False
        self._sequence: Sequence | None = None
        self._rank, self._ranks = ranks_of_program()
        self._values = Values(model, pipeline=pipeline)
        # If a run of this name has ended, its last version is the program's result.
        run, self._run_ended = find_or_submit(self._connect, run, self._values.specs, test_samples, restart)
        self._awaited = run
        self._handle = _library.open_group(
            coordinator=coordinator, tls=tls, insecure=insecure, run=run,
            program=made_by_rank_0(lambda: uuid.uuid4().hex), name=name.lower() if name else None,
            ranks=self._ranks, rank=self._rank, listen=listen, advertise=advertise,
            dial_seconds=timeout or 30.0, test_samples=test_samples, notice_seconds=self._notice,
        )
        self._close_at_exit = _exits.close_with(self, self._library, self._handle)
        try:
            self._values.register(self._library, self._handle, self._check)
        except BaseException:
            self.close("could not register the parameters")
            raise

    def _refuse_attached(self) -> None:
        if any(getattr(one, "_cadre_group", None) is not None for one in self._optimizers):
            raise CadreError("the optimizer is attached to a group already; close that group first")

    # ---- The loop

    def start(self) -> Group:
        """Joins the run, and returns when the model has the values of its newest version.

        For loops that look at `ended`, such as those of trainers: no exception ends them. `finish` or
        `close` must follow; if an exception ends the program before, the group leaves with it as the reason.
        """
        self._open(raises=False)
        return self

    def __iter__(self) -> Iterator[int]:
        """Yields the number of each step until the run ends, while the group is attached."""
        self._open(raises=False)
        turns = 0
        try:
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
        except BaseException as error:
            self.close(_exits.reason_of(type(error), error))
            raise
        if self._leaving:
            raise SystemExit(128 + signal.SIGTERM)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches of one pass of a loader after the other, until the run ends.

        `for batch in group.batches(loader)` is a loop like `for step in group`. A loader with
        `sampler(...)` or `dataset(...)` begins anew if the positions of the group have moved.
        """
        batches = None
        for _ in self:
            batches = batches or endless_batches(loader, self)
            yield next(batches)

    def __enter__(self) -> Group:
        self._open(raises=True)
        return self

    def _open(self, *, raises: bool) -> None:
        if self._handle is None:
            raise CadreError("the group is closed; call cadre.attach again")
        # Another group may have been entered since this one was made.
        self._refuse_attached()
        try:
            if self._run_ended:
                self._load_last_version()
            else:
                self._join()
            self._raises = raises
            if not self._ended:
                self._hooks = JointSteps(self._optimizers, self._after_step)
                self._follow(self.step)
        except BaseException:
            self.close("could not begin")
            raise
        if not self._ended:
            _log.info("run %s: group %d of %d trains from step %d, version %d", self.run, self.group,
                      self.groups, self.step, self.version)
        elif self._leaving:
            raise SystemExit(128 + signal.SIGTERM)
        elif raises:
            self._end_hooks = [one.register_step_pre_hook(_end_loop) for one in self._optimizers]

    def _join(self) -> None:
        for optimizer in self._optimizers:
            optimizer._cadre_group = self  # type: ignore[attr-defined]
        _forks.add(self)
        # Before it joins, so that a program that is a member does not end by the signal itself.
        if self._handle_signals and threading.current_thread() is threading.main_thread():
            self._handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._on_sigterm)
        _log.info("joining run %s", self._awaited)
        self._check(self._library.cadre_group_join(self._handle))
        self._boundary(self._timeout)

    def _load_last_version(self) -> None:
        """Gives the model the last version of a run that has ended."""
        self._check(self._library.cadre_group_load(self._handle, self._awaited.encode()))
        self._values.store()
        _log.info("run %s has ended at step %d; the model has its version %d", self.run, self.step, self.version)
        self._end()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, *_: object
    ) -> bool:
        for hook in self._end_hooks:
            hook.remove()
        self._end_hooks = []
        if kind is None:
            self.finish()
        self.close(_exits.reason_of(kind, value))
        ended = kind is not None and issubclass(kind, (RunEnded, Left))
        if self._leaving and (kind is None or ended):
            raise SystemExit(128 + signal.SIGTERM)
        return ended

    def finish(self) -> None:
        """Ends the loop before the end of the run, if it has not ended.

        The group contributes the steps since the last version, waits until the other groups have
        contributed, adopts the version, and leaves. All ranks call it after the same step.
        CadreError: the group has ended before the ranks agreed on that step, so the steps are in no
        version. After a SIGTERM it raises SystemExit with code 143.
        """
        if self._handle is not None and not self._ended and self._hooks is not None:
            self._finishing = True
            self._raises = False
            try:
                self._check(self._library.cadre_group_finish(self._handle))
                self._boundary(None)
            except BaseException as error:
                self.close(_exits.reason_of(type(error), error))
                raise
        self.close("the program has ended its loop")
        if self._leaving:
            raise SystemExit(128 + signal.SIGTERM)

    def close(self, reason: str = "closed") -> None:
        """Leaves the run now. Steps since the last version are lost."""
        if self._handle is not None:
            self._keep_state()
        handle = self._detach()
        if handle is not None:
            _log.info("run %s: leaving at step %d, version %d: %s", self.run or self._awaited, self.step,
                      self.version, reason)
            self._library.cadre_group_close(handle, reason.encode())

    def _detach(self) -> int | None:
        """Undoes what attaching has changed in this process. Returns the library's handle."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        for optimizer in self._optimizers:
            if getattr(optimizer, "_cadre_group", None) is self:
                optimizer._cadre_group = None  # type: ignore[attr-defined]
        for number, handler in self._handlers.items():
            # None: it was not set from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._handlers.clear()
        handle, self._handle = self._handle, None
        self._close_at_exit.detach()
        return handle

    # A forked child is not part of the group, and must not call the library, whose threads it lacks.
    # Its optimizer, signal handlers and copy of the state are its own.
    def before_fork(self) -> None:
        self._keep_state()

    def after_fork_in_child(self) -> None:
        self._detach()

    def _on_sigterm(self, *_: int | FrameType | None) -> None:
        self._leaving = True
        self.leave()

    def leave(self, within: float | None = None) -> None:
        """Leaves within this number of seconds; the group contributes first.

        It contributes at the next boundary, or after the current step if the boundary is too far away,
        and adopts the version if that exists in time. Default: CADRE_PREEMPTION_SECONDS, or 30.
        """
        if self._handle is not None:
            seconds = self._notice if within is None else within
            _log.info("run %s: leaving within %.0f s", self.run or self._awaited, seconds)
            self._library.cadre_group_leave(self._handle, seconds)

    # ---- Steps and boundaries

    def _after_step(self) -> None:
        if self._handle is not None and self._library.cadre_group_step(self._handle):
            self._boundary(None)
            if not self._ended:
                # The scheduler's own step follows that of the optimizer.
                self._follow(self.step - 1)

    def _boundary(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        before = self._state()
        waiting = WaitReport()
        while True:
            task = self._library.cadre_group_next(self._handle, _POLL)
            if task == _library.FETCH:
                self._values.fetch()
                self._report_device_values()
            elif task == _library.STORE:
                self._values.store()
            elif task == _library.EVALUATE:
                self._evaluate()
            elif task == _library.TRAIN:
                return self._continue_from(before)
            elif task == _library.ENDED:
                self._report_lost(before)
                # A drain has the effect of SIGTERM, unless the program was ending its loop itself.
                self._leaving |= bool(self._state().drained) and not self._finishing
                raises = self._raises
                self._end()
                if raises:
                    raise Left() if self._leaving else RunEnded()
                return None
            elif task == _library.ERROR:
                raise CadreError(self._error())
            elif deadline is not None and time.monotonic() > deadline:
                problem = self._error()
                raise TimeoutError(
                    f"run {self.run or self._awaited}: no group of it began within {timeout} s"
                    + (f": {problem}" if problem else "")
                )
            else:
                waiting.poll(lambda: describe_wait(self._state(), self.run or self._awaited, self._error()))

    def _continue_from(self, before: _library.GroupState) -> None:
        """Follows a boundary that began in this state."""
        self._report_lost(before)
        now = self._state()
        # The same sequence continues if the next step begins where the last one ended.
        passed = (now.step - before.step) * before.groups * before.batch
        moved = now.groups != before.groups or now.step != before.step
        if self._sequence is None or moved or now.sample_position != before.sample_position + passed:
            self._sequence = self.current_sequence()
        if now.version != before.version:
            _log.info("run %s: step %d, version %d of %d groups, next average at step %d", self.run, now.step,
                      now.version, now.participants, now.next_boundary)

    def _report_lost(self, before: _library.GroupState) -> None:
        lost = self._state().discarded_steps - before.discarded_steps
        if lost > 0:
            _log.warning("%d steps of this group are in no version of run %s", lost, self.run)

    def _end(self) -> None:
        """The run has ended, or the group has left it."""
        left = self._leaving or self._finishing
        self._ended = True
        run = self.run
        self.close("the program has ended its loop" if left else "the run has ended")
        if self._save_to is not None and not left and self._rank == 0:
            with self._connect() as client:
                saved = client.save(run, self._save_to)
            _log.info("run %s: version %s is in %s", run, saved["version"], self._save_to)

    # ---- Schedules and samples

    def follow(self, scheduler: Any) -> None:
        """Keeps a scheduler at the step of the group.

        The program steps the scheduler after the optimizer, as usual; it has not made a step yet. When
        the group begins late or steps are discarded, the scheduler moves to the step of the group.
        """
        follower = Follower(scheduler)
        self._followers.append(follower)
        if self._hooks is not None:
            follower.move_to(self.step)

    def _follow(self, step: int) -> None:
        for follower in self._followers:
            follower.move_to(step)

    def current_sequence(self) -> Sequence:
        """The sample positions of the group from the next step on."""
        if self._run_ended:
            # Trainers take a batch before they look whether training has ended.
            return Sequence(0, self._ranks, 1)
        state = self._state()
        if state.groups == 0:
            raise CadreError("the group has not begun, so it has no sample positions yet; iterate over the "
                             "loader in the loop")
        return Sequence(self.sample_position, state.batch, state.groups)

    @property
    def sequence(self) -> Sequence | None:
        """The positions of the next steps; another object after they have moved."""
        return self._sequence

    @property
    def sample_position(self) -> int:
        """Position of the first sample of the next step in the run's endless sequence of samples.

        The group uses the positions from here to here + batch_per_group. A position p is sample
        p % n of the p // n-th permutation of n samples; no other group has the same positions. With
        `scaler`, the positions move on when it leaves out a step.
        """
        state = self._state()
        return state.sample_position + self._left_out.count() * state.groups * state.batch

    def sampler(
        self, dataset: Any, *, shuffle: bool = True, seed: int = 0, part: tuple[int, int] | None = None
    ) -> PositionSampler:
        """A sampler without an end, which gives a DataLoader the samples of this group.

        All programs of the run use the same data set and seed. `part`: (i, n) has the i-th of n equal
        parts of each step. Default: that of this rank; ranks that need equal samples, such as those of
        tensor parallelism, pass equal parts.
        """
        order = Order(len(dataset), shuffle=shuffle, seed=seed)
        return PositionSampler(self, order, part or (self._rank, self._ranks))

    def dataset(
        self, source: Any, *, shuffle: bool | None = None, seed: int = 0, part: tuple[int, int] | None = None
    ) -> PositionDataset:
        """An iterable data set without an end with the samples of this group.

        For sources that can only be read in order, and for trainers that make their own samplers. Of a
        source without an index, all samples are read and those of other groups are left out; its
        method `skip` is used at the beginning if it has one. `shuffle`: default True, except for such
        sources. Workers of a DataLoader share the samples. `seed`, `part`: as in `sampler`.
        """
        return PositionDataset(self, source, part or (self._rank, self._ranks), seed=seed, shuffle=shuffle)

    # ---- Evaluation and end

    def _evaluate(self) -> None:
        """Evaluates the samples that the coordinator has assigned to this group."""
        state = self._state()
        assert self._evaluate_samples is not None, "the library has checked the number of samples"
        accuracy, loss = checked_result(
            self._evaluate_samples(state.evaluate_begin, state.evaluate_end)
        )
        samples = state.evaluate_end - state.evaluate_begin
        self._library.cadre_group_report_evaluation(
            self._handle, round(accuracy * samples), samples, loss * samples
        )

    @property
    def ended(self) -> bool:
        """Whether the run has ended, or the group has left it."""
        return self._ended

def attach(model: torch.nn.Module, optimizer: Optimizers, **options: Any) -> Group:
    """Makes a training loop a group of a run.

    The loop has one of these forms:
      for step in group: ...                   joins the run, and ends with it
      for batch in group.batches(loader): ...  the same, with the batches of a loader
      with group: ...                          a loop of its own, which the end of the run leaves
      group.start() ... group.finish()         a loop that looks at group.ended, as in trainers
    The program joins the run; when its group begins, the model has the values of the run's newest
    version (those of the first group, in a run that has none yet). After every `every_steps` steps of
    the optimizer, its hook exchanges the model with the other groups. At the end of the run the model
    has the last version. A `with` block that ends before contributes what it has trained. SIGTERM
    leaves after a contribution, Ctrl-C immediately.

    `optimizer`: one, or a list of those that make a step together.

    Options:
      coordinator: "host:port", or several separated by commas, of which one leads.
      run: the id or name of a run; or a mapping with the fields of RunSpec, except the parameters of
        the model, or the path of a run file (a Path, or text that has a "/" or ends with .textproto):
        it is then submitted, unless a run of that name exists. If that run has ended, the model gets
        its last version, and the loop ends without a step.
      restart: submit a new run if the run of that name has ended.
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
      scaler: the program's GradScaler: sample_position then moves on when it leaves out a step.
      pipeline: each rank has a part of the model's parameters, under the names of the whole model.
      save_to: path of a safetensors file for the last version, written at the end of the run by rank 0.

    With torch.distributed initialized, all ranks call it, and form one group: ranks of
    DistributedDataParallel divide the model, those of fully_shard exchange their shards.
    """
    return Group(model, optimizer, **options)
