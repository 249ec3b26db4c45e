"""Makes lightning.Trainer a group of a run.

    trainer = lightning.Trainer(..., callbacks=[CadreCallback(coordinator="HOST:7000", run=run, tls="DIR")])
    trainer.fit(module, loader)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning
import torch

from cadre._exits import describe_exception
from cadre.errors import CadreError
from cadre.integrations._attachment import Attachment


class CadreCallback(Attachment, lightning.Callback):
    """Attaches the module to a run. The options are those of cadre.attach.

    Training ends when the run or the trainer reaches its last step; in the latter case the group
    contributes what it has trained. Schedulers that the trainer steps after each batch follow the step
    of the run. The program ends with code 143 after a SIGTERM.

    The run needs `batch_per_group`: the loader's batch size, times accumulate_grad_batches, times the
    number of ranks; and `stop`, unless the trainer has max_steps and one optimizer. With several,
    max_steps counts the steps of each of them, the run those that they make together.

    Each loss counts for the average of its step. In manual optimization it is the `loss` that
    training_step returns, after its step: at an average it counts for the next one.

    `sampler(dataset)` makes a sampler for the loader with the samples of this group. With several
    ranks, use `dataset(source)` with Trainer(use_distributed_sampler=False) and a strategy that
    divides batches.
    """

    # The trainer fetches the first batches, whose positions the group must know, before on_train_start.
    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        optimizers = list(trainer.optimizers)
        run = self._options["run"]
        if len(optimizers) > 1 and trainer.max_steps > 0 and isinstance(run, Mapping) and "stop" not in run:
            raise CadreError(
                f"max_steps of the trainer counts the steps of each of its {len(optimizers)} optimizers, the run "
                "those that they make together; give the run a `stop`, such as \"stop\": {\"steps\": "
                f"{trainer.max_steps // len(optimizers)}}}")
        group = self.begin(pl_module, optimizers, steps=trainer.max_steps)
        if group.ended:
            trainer.should_stop = True
            return
        for config in trainer.lr_scheduler_configs:
            if config.interval == "step" and config.frequency == 1:
                group.follow(config.scheduler)

    def on_before_backward(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, loss: torch.Tensor
    ) -> None:
        # Manual optimization may have several losses of a step.
        if self.group is None or not pl_module.automatic_optimization:
            return
        # The trainer has divided it by the number of batches whose gradients it accumulates, and scaled it
        # in fp16.
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        scale = 1.0 if scaler is None else scaler.get_scale()
        self.group.report(loss=loss.detach() * (trainer.accumulate_grad_batches / scale))

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        # The model of a run that has ended must not change.
        if self.group is not None and self.group.ended:
            optimizer.zero_grad(set_to_none=True)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None:
        group = self.group
        if group is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None and not pl_module.automatic_optimization:
            group.report(loss=loss)
        # Before the trainer validates and saves.
        if not group.ended and 0 <= trainer.max_steps <= trainer.global_step:
            group.finish()
        if group.ended:
            trainer.should_stop = True

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if self.group is not None:
            self.group.finish()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        if self.group is None:
            return
        # The trainer's own answer to SIGTERM, a SystemExit without a code.
        if isinstance(exception, SystemExit) and type(exception).__name__ == "SIGTERMException":
            try:
                self.group.finish()
            except SystemExit as left:
                # The trainer still closes its loggers.
                exception.code = left.code
        self.group.close(describe_exception(type(exception), exception))
