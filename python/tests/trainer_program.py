"""Fine-tunes a tiny Llama with a trainer of another library, as a group of a run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import cadre
from output import print_line
from processes import wait_for

TOKENS = 16
SAMPLES = 256
HELD_AT = 21


class Texts(torch.utils.data.Dataset):
    """Sequences in which each token follows from the one before."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(TOKENS) * (index % 5 + 1) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


def make_model(seed: int, lora: bool) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, tie_word_embeddings=True))
    if not lora:
        return model
    import peft

    # All programs have the same base.
    torch.manual_seed(0)
    model.load_state_dict({name: torch.randn_like(value) / 8 for name, value in model.state_dict().items()})
    torch.manual_seed(seed)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


def train_transformers(options: argparse.Namespace, model: torch.nn.Module, run: dict[str, Any]) -> Any:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from cadre.integrations.transformers import CadreCallback

    callback = CadreCallback(coordinator=options.coordinator, run=run, insecure=True, **options.attach)
    arguments: dict[str, Any] = {
        "output_dir": str(options.output), "max_steps": options.steps, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "learning_rate": 1e-2, "warmup_steps": 2, "logging_steps": 1,
        "report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True,
        "include_num_input_tokens_seen": "all", "seed": 1,
    }

    class Pause(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            time.sleep(options.slow)

    if options.trainer == "sft":
        from datasets import Dataset
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from transformers import PreTrainedTokenizerFast
        from trl import SFTConfig, SFTTrainer

        words = {f"w{number}": number for number in range(64)}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words)), pad_token="w0",
                                            eos_token="w1")
        tokens = (Texts()[index]["input_ids"].tolist() for index in range(SAMPLES))
        trainer = SFTTrainer(
            model=model, args=SFTConfig(**arguments, max_length=TOKENS, bf16=False), processing_class=tokenizer,
            train_dataset=Dataset.from_list([{"input_ids": one} for one in tokens]), callbacks=[callback, Pause()])
    else:
        trainer = Trainer(model=model, args=TrainingArguments(**arguments), callbacks=[callback, Pause()],
                          train_dataset=callback.dataset(Texts()))
    trained = trainer.train()
    assert "train_runtime" in trained.metrics
    options.global_step = trainer.state.global_step
    options.logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    options.rate = trainer.lr_scheduler.get_last_lr()[0]
    return callback.group


def train_lightning(options: argparse.Namespace, model: torch.nn.Module, run: dict[str, Any]) -> Any:
    import lightning

    from cadre.integrations.lightning import CadreCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss = self.model(**batch).loss
            options.losses.append(loss.item())
            return loss

        def on_train_batch_end(self, *_: Any) -> None:
            time.sleep(options.slow)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, options.steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    callback = CadreCallback(coordinator=options.coordinator, run={"batch_per_group": 4, **run}, insecure=True,
                             **options.attach)
    loader = torch.utils.data.DataLoader(Texts(), batch_size=2, sampler=callback.sampler(Texts()))
    trainer = lightning.Trainer(
        max_steps=options.steps, accumulate_grad_batches=2, callbacks=[callback], accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), loader)
    options.global_step = trainer.global_step
    options.rate = trainer.optimizers[0].param_groups[0]["lr"]
    return callback.group


def train_accelerate(options: argparse.Namespace, model: torch.nn.Module, run: dict[str, Any]) -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    group = cadre.attach(model, optimizer, coordinator=options.coordinator, insecure=True,
                         run={"batch_per_group": 4, "stop": {"steps": options.steps}, **run}, **options.attach)
    loader = torch.utils.data.DataLoader(Texts(), batch_size=2, sampler=group.sampler(Texts()), num_workers=2)
    for batch in group.batches(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            group.report(loss=loss)
        time.sleep(options.slow / 2)
    return group


def train_plain(options: argparse.Namespace, model: torch.nn.Module, run: dict[str, Any]) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    group = cadre.attach(model, optimizer, coordinator=options.coordinator, insecure=True,
                         run={"batch_per_group": 4, "stop": {"steps": options.steps}, **run}, **options.attach)
    group.follow(schedule)
    loader = torch.utils.data.DataLoader(Texts(), batch_size=4, sampler=group.sampler(Texts()))
    for batch in group.batches(loader):
        if options.steps <= group.step:
            group.finish()
            break
        loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        group.report(loss=loss, tokens=4 * TOKENS, rate=schedule.get_last_lr()[0], gradient_norm=norm)
        time.sleep(options.slow)
        if options.hold and group.step >= HELD_AT:
            wait_for(options.hold.exists, str(options.hold), 120)
    options.rate = schedule.get_last_lr()[0]
    return group


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=["transformers", "sft", "lightning", "accelerate", "plain"])
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--run", required=True, help="JSON")
    parser.add_argument("--attach", type=json.loads, default={}, help="JSON: further options of attach")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds of each step")
    parser.add_argument("--hold", type=Path, help=f"a file that a plain trainer waits for after step {HELD_AT}")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model(options.seed, options.lora)
    options.global_step = options.rate = options.logged = None
    options.losses = []
    train = {"transformers": train_transformers, "sft": train_transformers, "lightning": train_lightning,
             "accelerate": train_accelerate, "plain": train_plain}[options.trainer]
    group = train(options, model, json.loads(options.run))
    model.save_pretrained(options.output)
    print_line({"step": group.step, "version": group.version, "digest": group.digest, "ended": group.ended,
                "discarded": group.discarded_steps, "run": group.run, "global_step": options.global_step,
                "rate": options.rate, "logged": options.logged, "losses": options.losses})


if __name__ == "__main__":
    sys.exit(main())
