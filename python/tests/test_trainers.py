"""Trainers of other libraries that fine-tune a tiny Llama together (trainer_program.py)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import Cluster, Program, wait_for

# With this variable a test fails, instead of being skipped, if what it needs is not installed.
if "CADRE_REQUIRE_TOOLS" not in os.environ:
    for _module in ("torch", "transformers", "accelerate", "lightning", "trl", "peft", "datasets"):
        pytest.importorskip(_module)
import torch  # noqa: E402

import cadre  # noqa: E402


def run_of(name: str = "llama", **fields: Any) -> dict[str, Any]:
    return {"name": name, "averaging": {"every_steps": 4, "min_groups": 2}, "cluster": {"groups": 2}, **fields}


def start(cluster: Cluster, name: str, trainer: str, run: dict[str, Any], steps: int, *flags: str) -> Program:
    return cluster.start(name, "trainer_program.py", trainer, "--run", json.dumps(run), "--steps", str(steps),
                         "--output", str(cluster.folder / name), *flags)


def ended(*programs: Program) -> list[dict[str, Any]]:
    def settled() -> bool:
        codes = [program.process.poll() for program in programs]
        # Another program would wait for one that has failed.
        return any(codes) or None not in codes

    wait_for(settled, "the programs to end", 240)
    for program in programs:
        if program.process.poll() is not None:
            program.succeed()
    return [program.lines()[-1] for program in programs]


def saved(cluster: Cluster, name: str, adapter: bool = False) -> dict[str, Any]:
    from safetensors.torch import load_file

    file = "adapter_model.safetensors" if adapter else "model.safetensors"
    return load_file(cluster.folder / name / file)


def assert_saved_is_the_version(cluster: Cluster, run: str, *names: str) -> None:
    version = cluster.client.pull(run)
    for name in names:
        model = saved(cluster, name)
        for key, value in version.items():
            # A LightningModule has the model in an attribute of this name.
            key = key.replace("model.model.", "model.", 1)
            assert torch.equal(model.pop(key), torch.from_numpy(value)), key
        # The head is the tensor of the embedding.
        assert model.keys() <= {"lm_head.weight"}


@pytest.mark.parametrize("trainers", [("transformers", "sft"), ("accelerate", "plain"), ("lightning", "lightning")],
                         ids="-".join)
def test_trainers_end_with_the_same_model(cluster: Cluster, trainers: tuple[str, str]) -> None:
    programs = [start(cluster, f"{number}", trainer, run_of(), 12, "--seed", str(number))
                for number, trainer in enumerate(trainers)]
    one, other = ended(*programs)
    assert one["digest"] == other["digest"]
    assert {(line["step"], line["ended"], line["discarded"]) for line in (one, other)} == {(12, True, 0)}
    assert {line["global_step"] for line in (one, other)} <= {12, None}
    assert cluster.client.run_status(one["run"])["state"] == "RUN_STATE_DONE"
    assert_saved_is_the_version(cluster, one["run"], "0", "1")
    if trainers[0] == "lightning":
        # Each loss counts for the average of its own step: 4 steps of 2 batches.
        losses = [loss for line in (one, other) for loss in line["losses"][-8:]]
        *_, last = (entry["commit"] for entry in cluster.client.history("llama")["entries"] if "commit" in entry)
        assert last["loss"] == pytest.approx(sum(losses) / 16, rel=1e-4)


def test_trainer_ends_before_the_run(cluster: Cluster) -> None:
    """The groups contribute what they have trained, and save the same model; the run can continue."""
    run = run_of(stop={"steps": 40})
    lines = ended(*(start(cluster, str(number), "transformers", run, 10) for number in range(2)))
    assert {(line["step"], line["global_step"], line["discarded"]) for line in lines} == {(10, 10, 0)}
    assert len({line["digest"] for line in lines}) == 1
    assert_saved_is_the_version(cluster, lines[0]["run"], "0", "1")
    status = cluster.client.run_status(lines[0]["run"])
    assert (status["state"], status["step"]) == ("RUN_STATE_RUNNING", 10)
    assert "ended their loops at step 10 of 40" in status["reason"]
    # What the trainer logs at an average counts for the next one; what it logs last, for the last one.
    logged = [entry for line in lines for entry in line["logged"] if entry["step"] >= 8]
    *_, last = (entry["commit"] for entry in cluster.client.history("llama")["entries"] if "commit" in entry)
    assert last["loss"] == pytest.approx(sum(entry["loss"] for entry in logged) / 6, rel=1e-4)
    assert [entry["cadre/version"] for entry in logged if entry["step"] == 10] == [status["version"]] * 2
    assert {entry["cadre/discarded_steps"] for entry in logged} == {0}


def test_scaled_step_of_a_run_that_has_ended_changes_nothing() -> None:
    """GradScaler looks at the gradients, unless they are clipped, in the step."""
    from transformers import TrainerControl

    from cadre.integrations.transformers import CadreCallback

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    callback = CadreCallback(coordinator="unused", run="unused")
    callback.group = SimpleNamespace(ended=True, step=3)  # type: ignore[assignment]
    state, control = SimpleNamespace(num_input_tokens_seen=0, max_steps=60), TrainerControl()

    def step() -> bool:
        before = model.weight.detach().clone()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        callback.on_pre_optimizer_step(None, state, control, optimizer=optimizer)
        scaler.step(optimizer)
        scaler.update()
        callback.on_step_end(None, state, control)
        return not torch.equal(model.weight, before)

    assert not step()
    # The optimizer may be used again.
    callback.group.ended = control.should_training_stop = False
    assert step()


def test_steps_of_several_optimizers_in_lightning_are_not_those_of_the_run() -> None:
    from cadre.integrations.lightning import CadreCallback

    callback = CadreCallback(coordinator="unused", run={"name": "gan"})
    optimizers = [torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1) for _ in range(2)]
    trainer = SimpleNamespace(optimizers=optimizers, max_steps=40)
    with pytest.raises(cadre.CadreError, match="each of its 2 optimizers.*give the run a `stop`"):
        callback.on_fit_start(trainer, torch.nn.Linear(2, 1))


def test_trainer_ends_with_the_run(cluster: Cluster) -> None:
    """Its own last step is later."""
    run = run_of(stop={"steps": 8})
    lines = ended(*(start(cluster, str(number), "transformers", run, 60) for number in range(2)))
    assert {(line["step"], line["global_step"]) for line in lines} == {(8, 8)}
    assert len({line["digest"] for line in lines}) == 1


def test_late_trainer_and_one_after_the_end(cluster: Cluster) -> None:
    run = run_of(averaging={"every_steps": 4}, stop={"steps": 60})
    go = cluster.folder / "go"
    first = start(cluster, "first", "plain", run, 60, "--hold", str(go))
    wait_for(lambda: any(status["step"] >= 8 for status in cluster.client.status()["runs"]), "steps")
    late = start(cluster, "late", "plain", run, 60)
    wait_for(lambda: sum(group["version"] > 0 for group in cluster.client.status()["groups"]) == 2, "the late one", 120)
    go.touch()
    one, other = ended(first, late)
    assert one["digest"] == other["digest"]
    assert one["discarded"] == other["discarded"] == 0
    # The schedule of the late one is that of the run.
    assert one["rate"] == other["rate"] == pytest.approx(1e-2 / 61)

    for trainer in ("plain", "transformers"):
        (again,) = ended(start(cluster, f"again-{trainer}", trainer, run, 60, "--seed", "9"))
        assert (again["run"], again["digest"], again["step"]) == (one["run"], one["digest"], 60)
        assert_saved_is_the_version(cluster, one["run"], f"again-{trainer}")
    assert len(cluster.client.status()["runs"]) == 1
    restart = json.dumps({"restart": True, "save_to": str(cluster.folder / "saved.safetensors")})
    short = {**run, "averaging": {"every_steps": 4}}
    new = start(cluster, "new", "plain", short, 60, "--attach", restart)
    (line,) = ended(new)
    assert line["run"] != one["run"]
    from safetensors.torch import load_file

    assert load_file(cluster.folder / "saved.safetensors").keys() == cluster.client.pull(line["run"]).keys()


@pytest.mark.parametrize("trainer", ["transformers", "lightning"])
def test_terminated_trainer_contributes_and_ends_with_143(cluster: Cluster, trainer: str) -> None:
    run = run_of(averaging={"every_steps": 500}, stop={"steps": 1000}, cluster={"groups": 1})
    program = start(cluster, "p", trainer, run, 1000, "--slow", "0.05")
    wait_for(lambda: any(group["step"] >= 20 for group in cluster.client.status()["groups"]), "steps")
    begun = time.monotonic()
    program.process.terminate()
    assert program.wait(30) == 143, program.err.read_text()[-2000:]
    assert time.monotonic() - begun < 25
    status = cluster.client.run_status("llama")
    assert status["version"] == 2
    assert 20 <= status["step"] < 500


def test_adapters_alone_travel(cluster: Cluster) -> None:
    """LoRA: the base stays in the programs."""
    lines = ended(*(start(cluster, str(number), "plain", run_of(), 12, "--lora", "--seed", str(number))
                    for number in range(2)))
    assert len({line["digest"] for line in lines}) == 1
    version = cluster.client.pull(lines[0]["run"])
    assert all(".lora_" in name for name in version)
    status = cluster.client.run_status(lines[0]["run"])
    values = 4 * sum(value.size for value in version.values())
    # 3 rounds, to and from both groups, and the first values, which a group that begins later only receives.
    transfers, rest = divmod(int(status["payload_bytes_across_groups"]), values)
    assert rest == 0
    assert 12 < transfers <= 16
    # The messages around them have a constant size: 0.5 % of adapters of 100 kB.
    assert int(status["bytes_across_groups"]) < (values + 500) * transfers
    for name in ("0", "1"):
        adapters = saved(cluster, name, adapter=True)
        assert {key.replace(".weight", ".default.weight") for key in adapters} == version.keys()
