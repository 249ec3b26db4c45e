"""Makes transformers.Trainer, and trainers derived from it such as trl.SFTTrainer, groups of a run.

    trainer = Trainer(..., callbacks=[CadreCallback(coordinator="HOST:7000", run=run, tls="DIR")])
    trainer.train()
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cadre.errors import CadreError
from cadre.integrations._attachment import Attachment


class CadreCallback(Attachment, TrainerCallback):
    """Attaches the trainer's model to a run. The options are those of cadre.attach.

    The trainer's step is that of the run: a trainer that begins late makes the steps that remain, and
    its schedule follows. Training ends when the run or the trainer reaches its last step; in the latter
    case the group contributes what it has trained. Evaluations and checkpoints of the trainer then have
    the model of the newest version. The program ends with code 143 after a SIGTERM.

    `dataset(source)` makes a data set for the trainer with the samples of this group:
    `Trainer(train_dataset=callback.dataset(dataset), ...)`, which requires `max_steps`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # What the trainer counted when it logged last, and the steps that it has made since.
        self._tokens = 0
        self._logged_step = 0
        self._steps = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.deepspeed is not None:
            raise CadreError("DeepSpeed is not supported; use FSDP2 (fsdp_config with fsdp_version 2)")
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        group = self.begin(kwargs["model"], kwargs["optimizer"], batch=batch, steps=state.max_steps)
        self._tokens = int(state.num_input_tokens_seen or 0)
        self._logged_step = state.global_step
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
        if self.group.ended:
            kwargs["optimizer"].zero_grad(set_to_none=True)
        seen = int(state.num_input_tokens_seen or 0)
        if seen > self._tokens:
            self.group.report(tokens=seen - self._tokens)
            self._tokens = seen

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        group = self.group
        if group is None:
            return
        self._steps += 1
        # Before the trainer evaluates, saves, or loads the best of its checkpoints.
        if not group.ended and (group.step >= state.max_steps or control.should_training_stop):
            group.finish()
        state.global_step = group.step
        if group.ended:
            control.should_training_stop = True

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
        logs: dict[str, Any] | None = None, **kwargs: Any,
    ) -> None:
        if self.group is None or logs is None or "loss" not in logs:
            return
        # The trainer has divided the sum of its losses by the steps of the run since its last entry, which
        # are not those that it has made if the group began late or lost steps.
        counted = state.global_step - self._logged_step
        if self._steps > 0 and counted != self._steps:
            logs["loss"] = float(logs["loss"]) * counted / self._steps
        self._logged_step, self._steps = state.global_step, 0
        metrics = {"gradient_norm": logs["grad_norm"]} if "grad_norm" in logs else {}
        self.group.report(loss=float(logs["loss"]), rate=logs.get("learning_rate"), **metrics)
        logs["cadre/version"] = self.group.version
        logs["cadre/discarded_steps"] = self.group.discarded_steps

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.group is not None:
            self.group.finish()
