"""Makes transformers.Trainer, and trainers derived from it such as trl.SFTTrainer, groups of a run.

    trainer = Trainer(..., callbacks=[CadreCallback(coordinator="HOST:7000", run=run, tls="DIR")])
    trainer.train()
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cadre._steps import find_optimizer
from cadre.errors import CadreError
from cadre.integrations._attachment import Attachment


class CadreCallback(Attachment, TrainerCallback):
    """Attaches the trainer's model to a run. The options are those of cadre.attach.

    The trainer's step is that of the run: a trainer that begins late makes the steps that remain, and
    its schedule follows. Training ends when the run or the trainer reaches its last step; in the latter
    case the group contributes what it has trained. Evaluations and checkpoints of the trainer then have
    the model of the newest version. The program ends with code 143 after a SIGTERM. If an exception ends
    it, the group leaves with the exception as its reason.

    The trainer gives callbacks the loss of a step after the step, and only when it logs it: what it logs
    at an average counts for the next one, and after the step that ends the run it does not count.

    `dataset(source)` makes a data set for the trainer with the samples of this group:
    `Trainer(train_dataset=callback.dataset(dataset), ...)`, which requires `max_steps`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # What the trainer counted when it logged last, and the steps that it has made since.
        self._tokens = 0
        self._logged_step = 0
        self._steps = 0
        # Whether the group leaves when the trainer has logged its last loss.
        self._finishes_with_log = False
        # Empties the gradients in a step of a run that has ended.
        self._empties: torch.utils.hooks.RemovableHandle | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.deepspeed is not None:
            raise CadreError("DeepSpeed is not supported; use FSDP2 (fsdp_config with fsdp_version 2)")
        # What an exception may have left.
        self._keep_gradients()
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        group = self.begin(kwargs["model"], kwargs["optimizer"], batch=batch, steps=state.max_steps)
        self._tokens = int(state.num_input_tokens_seen or 0)
        self._logged_step = state.global_step
        self._steps = 0
        self._finishes_with_log = False
        if kwargs.get("lr_scheduler") is not None and not group.ended:
            group.follow(kwargs["lr_scheduler"])
        state.global_step = group.step
        control.should_training_stop = group.ended

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.group is None:
            return
        # The trainer makes a first step in any case; the model of a run that has ended must not change.
        # GradScaler needs the gradients until it calls the optimizer.
        if self.group.ended:
            self._empties = find_optimizer(kwargs["optimizer"]).register_step_pre_hook(
                lambda optimizer, *_: optimizer.zero_grad(set_to_none=True))
        seen = int(state.num_input_tokens_seen or 0)
        if seen > self._tokens:
            self.group.report(tokens=seen - self._tokens)
            self._tokens = seen

    def _keep_gradients(self) -> None:
        if self._empties is not None:
            self._empties.remove()
            self._empties = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        group = self.group
        if group is None:
            return
        self._steps += 1
        self._keep_gradients()
        # Before the trainer evaluates, saves, or loads the best of its checkpoints; it logs before these.
        if not group.ended and (group.step >= state.max_steps or control.should_training_stop):
            self._finishes_with_log = control.should_log and group.step > self._logged_step
            if not self._finishes_with_log:
                group.finish()
        state.global_step = group.step
        if group.ended or self._finishes_with_log:
            control.should_training_stop = True

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
        logs: dict[str, Any] | None = None, **kwargs: Any,
    ) -> None:
        group = self.group
        if group is None or logs is None or "loss" not in logs:
            return
        # The trainer has divided the sum of its losses by the steps of the run since its last entry, which
        # are not those that it has made if the group began late or lost steps.
        logged_step = state.global_step
        counted = logged_step - self._logged_step
        if self._steps > 0 and counted != self._steps:
            logs["loss"] = float(logs["loss"]) * counted / self._steps
        self._logged_step, self._steps = logged_step, 0
        metrics = {"gradient_norm": logs["grad_norm"]} if "grad_norm" in logs else {}
        group.report(loss=float(logs["loss"]), rate=logs.get("learning_rate"), **metrics)
        if self._finishes_with_log:
            self._finishes_with_log = False
            group.finish()
            state.global_step = group.step
        logs["cadre/version"] = group.version
        logs["cadre/discarded_steps"] = group.discarded_steps
        # The trainer has added a copy to its history before.
        entry = state.log_history[-1] if state.log_history else {}
        if "loss" in entry and entry.get("step") == logged_step:
            entry.update((name, logs[name]) for name in ("loss", "cadre/version", "cadre/discarded_steps"))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.group is not None:
            self.group.finish()
