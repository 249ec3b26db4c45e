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
        self._tokens = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.deepspeed is not None:
            raise CadreError("DeepSpeed is not supported; use FSDP2 (fsdp_config with fsdp_version 2)")
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        group = self.begin(kwargs["model"], kwargs["optimizer"], batch=batch, steps=state.max_steps)
        self._tokens = int(state.num_input_tokens_seen or 0)
        if kwargs.get("lr_scheduler") is not None and not group.ended:
            group.follow(kwargs["lr_scheduler"])
        state.global_step = group.step
        control.should_training_stop = group.ended

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The trainer makes a first step in any case; the model of a run that has ended must not change.
        if self.group is not None and self.group.ended:
            kwargs["optimizer"].zero_grad(set_to_none=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        group = self.group
        if group is None:
            return
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
        seen = int(state.num_input_tokens_seen or 0)
        metrics = {"gradient_norm": logs["grad_norm"]} if "grad_norm" in logs else {}
        self.group.report(loss=float(logs["loss"]), tokens=seen - self._tokens or None,
                          rate=logs.get("learning_rate"), **metrics)
        self._tokens = seen
        logs["cadre/version"] = self.group.version
        logs["cadre/discarded_steps"] = self.group.discarded_steps

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.group is not None:
            self.group.finish()
