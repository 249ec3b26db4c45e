"""Makes lightning.Trainer a group of a run.

    trainer = lightning.Trainer(..., callbacks=[CadreCallback(coordinator="HOST:7000", run=run, tls="DIR")])
    trainer.fit(module, loader)
"""

from __future__ import annotations

from typing import Any

import lightning
import torch

from cadre.integrations._attachment import Attachment


class CadreCallback(Attachment, lightning.Callback):
    """Attaches the module to a run. The options are those of cadre.attach.

    Training ends when the run or the trainer reaches its last step; in the latter case the group
    contributes what it has trained. Schedulers that the trainer steps after each batch follow the step
    of the run. The program ends with code 143 after a SIGTERM.

    The run needs `batch_per_group`: the loader's batch size, times accumulate_grad_batches, times the
    number of ranks; and `stop`, unless the trainer has max_steps.

    `sampler(dataset)` makes a sampler for the loader with the samples of this group. With several
    ranks, use `dataset(source)` with Trainer(use_distributed_sampler=False) and a strategy that
    divides batches.
    """

    # The trainer fetches the first batches, whose positions the group must know, before on_train_start.
    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        group = self.begin(pl_module, list(trainer.optimizers), steps=trainer.max_steps)
        if group.ended:
            trainer.should_stop = True
            return
        for config in trainer.lr_scheduler_configs:
            if config.interval == "step" and config.frequency == 1:
                group.follow(config.scheduler)

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
        if loss is not None:
            # The trainer has divided it by the number of batches whose gradients it accumulates.
            scale = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            group.report(loss=scale * (loss.detach() if isinstance(loss, torch.Tensor) else loss))
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
        # The trainer's own answer to SIGTERM, without an exit code.
        if type(exception).__name__ == "SIGTERMException":
            self.group.finish()
        self.group.close(f"{type(exception).__name__}: {exception}"[:200])
