"""What attach refuses before it joins, and what it counts and reports; the loops run in this process."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from processes import Cluster, wait_for
from test_groups import spec

import cadre

torch = pytest.importorskip("torch")

from cadre import _attach, _waits  # noqa: E402
from cadre._evaluation import checked_result  # noqa: E402
from cadre._parameters import digest_of, parameters_of, refuse_unsupported  # noqa: E402
from cadre._steps import StepHooks, find_optimizer  # noqa: E402


def attach(cluster: Cluster, model: Any, optimizer: Any, run: Any = None, **options: Any) -> Any:
    run = json.loads(spec(groups=1, steps=16)) if run is None else run
    return cadre.attach(model, optimizer, coordinator=cluster.address, run=run, insecure=True,
                        timeout=30, **options)


def sgd(model: Any, rate: float = 0.1) -> Any:
    return torch.optim.SGD(model.parameters(), lr=rate)


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 2)).abs().sum().backward()
    optimizer.step()


# ---- Steps


class Accumulating:
    """Wraps an optimizer like AcceleratedOptimizer: not every step of it is one of the optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.calls = 0

    def step(self) -> None:
        self.calls += 1
        if self.calls % 2 == 0:
            self.optimizer.step()


class Wrapper(torch.optim.Optimizer):
    """An optimizer by type only: it has no hooks."""

    def __init__(self, optimizer: Any) -> None:
        self.optim = optimizer

    def step(self, closure: Any = None) -> None:
        self.optim.step(closure)


class Outer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Retrying(torch.optim.SGD):
    """Its base class's step fails once, and is called again."""

    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]
        group["lr"], rate = "not a number", group["lr"]
        try:
            super().step(closure)
        except Exception:
            group["lr"] = rate
        return super().step(closure)


@pytest.fixture
def hooked_sgd() -> Any:
    """PyTorch adds hooks to a base class's step when the first object of it is made."""
    return sgd(torch.nn.Linear(1, 1))


def count(optimizer: Any, steps: int, take: Any = None) -> int:
    counted: list[int] = []
    hooks = StepHooks(find_optimizer(optimizer), lambda: counted.append(1))
    for _ in range(steps):
        (take or optimizer.step)()
    hooks.remove()
    optimizer.step()
    return len(counted)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Outer, Retrying])
def test_nested_step_counts_once(kind: Any, hooked_sgd: Any) -> None:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(2)).sum().backward()
    assert count(kind(model.parameters(), lr=0.1), 5) == 5


@pytest.mark.parametrize("kind", [torch.optim.SGD, Outer])
def test_compiled_step_counts_once(kind: Any, hooked_sgd: Any) -> None:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(2)).sum().backward()
    optimizer = kind(model.parameters(), lr=0.1)
    assert count(optimizer, 5, torch.compile(lambda: optimizer.step(), backend="eager")) == 5


@pytest.mark.parametrize("kind", [torch.optim.SGD, Outer])
def test_step_that_fails_does_not_hide_the_next(kind: Any, hooked_sgd: Any) -> None:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(2)).sum().backward()
    optimizer = kind(model.parameters(), lr=0.1)

    def take() -> None:
        optimizer.param_groups[0]["lr"] = "not a number"
        with pytest.raises(Exception):  # noqa: B017
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step()

    assert count(optimizer, 5, take) == 5


def test_steps_of_a_wrapped_optimizer_count() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = sgd(model)
    assert find_optimizer(optimizer) is optimizer
    assert find_optimizer(Wrapper(Accumulating(optimizer))) is optimizer
    assert count(Accumulating(optimizer), 6) == 3


def test_object_without_an_optimizer_is_refused() -> None:
    class Nothing:
        optimizer = "adam"

        def step(self) -> None: ...

    for given in (Nothing(), Wrapper(None), None):
        with pytest.raises(cadre.CadreError, match="is not an optimizer whose steps PyTorch reports"):
            find_optimizer(given)


def test_run_ends_after_its_steps(cluster: Cluster, hooked_sgd: Any) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = Outer(model.parameters(), lr=0.1)
    steps = 0
    for _ in attach(cluster, model, Wrapper(optimizer)):
        step(model, optimizer)
        steps += 1
    assert steps == 16


def test_nothing_remains_of_a_group_that_could_not_begin(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = sgd(model)
    handler = signal.getsignal(signal.SIGTERM)
    fail = lambda *_: (_ for _ in ()).throw(AttributeError("hook"))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(optimizer, "register_step_pre_hook", fail)
        with pytest.raises(AttributeError, match="hook"):
            for _ in attach(cluster, model, optimizer):
                pass
    wait_for(lambda: not cluster.client.status().get("workers"), "the program to leave", 5)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not optimizer._optimizer_step_post_hooks
    with attach(cluster, model, optimizer) as group:
        # Neither the optimizer nor the group can be attached once more.
        with pytest.raises(cadre.CadreError, match="attached to a group already"):
            next(iter(group))
        while True:
            step(model, optimizer)
    assert group.step == 16


def test_loop_without_steps_ends(cluster: Cluster) -> None:
    """As that of GradScaler with a sample whose gradients are never finite."""
    model = torch.nn.Linear(2, 2)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = sgd(model)
    with pytest.raises(cadre.CadreError, match=r"turns of the loop have not ended step 4, .* position 64"):
        for at in attach(cluster, model, optimizer):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 2), float("nan") if at == 4 else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()


# ---- Values


class Mixer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phase = torch.nn.Parameter(torch.full((2, 3), 1 + 2j))
        self.wide = torch.nn.Parameter(torch.full((2,), 3 + 4j, dtype=torch.complex128))

    def forward(self, inputs: Any) -> Any:
        return (inputs * self.wide).to(torch.complex64) @ self.phase


def test_complex_parameters_keep_both_parts(cluster: Cluster) -> None:
    model = Mixer()
    optimizer = sgd(model, rate=0.0)
    for _ in attach(cluster, model, optimizer):
        step(model, optimizer)
    assert torch.equal(model.phase, torch.full((2, 3), 1 + 2j))
    assert torch.equal(model.wide, torch.full((2,), 3 + 4j, dtype=torch.complex128))
    pulled = cluster.client.pull(cluster.client.status()["runs"][0]["run"])
    assert pulled["phase"].shape == (2, 3, 2) and pulled["phase"][0, 0].tolist() == [1, 2]


def test_complex_parameters_share_their_memory() -> None:
    model = Mixer()
    for one in parameters_of(model):
        one.tensor.add_(1)
    assert model.phase[0, 0].item() == 2 + 3j and model.wide[0].item() == 4 + 5j


class Masked(torch.nn.Module):
    """With buffers that no average can change."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(2, 1)
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        self.register_buffer("wide", torch.full((2,), 1e300, dtype=torch.float64))
        self.register_buffer("expanded", torch.ones(1).expand(4))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, inputs: Any) -> Any:
        return self.head(inputs)


def test_constant_buffers_are_not_exchanged(cluster: Cluster) -> None:
    model = Masked()
    optimizer = sgd(model)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for _ in attach(cluster, model, optimizer):
        step(model, optimizer)
    run = cluster.client.status()["runs"][0]
    assert run["state"] == "RUN_STATE_DONE"
    assert sorted(cluster.client.pull(run["run"])) == ["head.bias", "head.weight", "mean"]
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer.to_dense(), before[name].to_dense()), name


def test_constant_buffer_that_changes_is_refused(cluster: Cluster) -> None:
    model = Masked()
    optimizer = sgd(model)
    with pytest.raises(cadre.CadreError, match="buffer 'mask' is not exchanged"):
        for at in attach(cluster, model, optimizer):
            step(model, optimizer)
            if at == 5:
                model.mask.mul_(2)
                model.mask[0, 0] = 1


def test_buffers_of_inference_mode_are_constant(cluster: Cluster) -> None:
    """PyTorch neither counts their changes, nor lets the average of the groups change them."""
    model = torch.nn.Linear(2, 1)
    with torch.inference_mode():
        model.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        model.register_buffer("scale", torch.ones(2, dtype=torch.float64))
    optimizer = sgd(model)
    with pytest.raises(cadre.CadreError, match="buffer 'mask' is not exchanged, .* inference mode"):
        for at in attach(cluster, model, optimizer):
            step(model, optimizer)
            if at == 6:
                run = cluster.client.status()["runs"][0]
                assert sorted(cluster.client.pull(run["run"])) == ["bias", "weight"]
                with torch.inference_mode():
                    model.mask[0, 0] = 1


def test_parameter_that_is_not_finite_is_named(cluster: Cluster) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = sgd(model)
    model.weight.data[0, 1] = float("nan")
    message = "before the first step: element 1 of parameter 'weight' is nan"
    with pytest.raises(cadre.CadreError, match=message):
        for _ in attach(cluster, model, optimizer):
            step(model, optimizer)


def test_defaults_of_pytorch_do_not_matter(cluster: Cluster) -> None:
    model = torch.nn.Linear(2, 1).double()
    optimizer = sgd(model)
    with torch.device("meta"):
        group = attach(cluster, model, optimizer)
    torch.set_default_dtype(torch.float16)
    try:
        for _ in group:
            with torch.device("cpu"):
                model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
            with torch.device("meta"):
                optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    run = cluster.client.status()["runs"][0]
    assert run["state"] == "RUN_STATE_DONE"
    pulled = cluster.client.pull(run["run"])
    assert pulled["weight"][0].tolist() == pytest.approx(model.weight[0].tolist(), rel=1e-6)


class Adapted(torch.nn.Module):
    """A part of a mixture of experts: many frozen matrices, and tensors without elements."""

    def __init__(self, matrices: int) -> None:
        super().__init__()
        self.head = torch.nn.Linear(2, 1)
        self.experts = torch.nn.ParameterDict({
            f"layers_{i // 384}_mlp_experts_{i % 384}_projection_weight": torch.nn.Parameter(
                torch.ones(2), requires_grad=False)
            for i in range(matrices)
        })
        self.nothing = torch.nn.Parameter(torch.empty(0, 4))
        self.register_buffer("none", torch.empty(0))

    def forward(self, inputs: Any) -> Any:
        return self.head(inputs)


class Scales:
    """Stands for QuantState of bitsandbytes, which has the scales of a parameter in 4 bits."""

    def __init__(self, largest: float) -> None:
        self.largest = largest

    def as_dict(self, packed: bool) -> dict[str, Any]:
        assert packed
        return {"absmax": torch.tensor([self.largest]), "quant_map": torch.arange(16.0)}


def test_digest_of_codes_contains_their_scales() -> None:
    def quantized(largest: float) -> Any:
        parameter = torch.nn.Parameter(torch.arange(8, dtype=torch.uint8).view(8, 1), requires_grad=False)
        parameter.quant_state = Scales(largest)
        return parameter

    assert digest_of(quantized(0.5)) == digest_of(quantized(0.5))
    assert digest_of(quantized(0.5)) != digest_of(quantized(0.25))


def test_many_parameters_and_empty_ones(cluster: Cluster) -> None:
    model = Adapted(48 * 128 * 3)
    optimizer = sgd(model)
    assert [one.name for one in parameters_of(model) if "layers" not in one.name] == [
        "head.weight", "head.bias"]
    for _ in attach(cluster, model, optimizer):
        step(model, optimizer)
    assert cluster.client.status()["runs"][0]["state"] == "RUN_STATE_DONE"


def test_fsdp1_is_refused(tmp_path: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0,
                                         world_size=1)
    try:
        flat = FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=torch.device("cpu"))
        with pytest.raises(cadre.CadreError, match="FSDP1.*fully_shard"):
            refuse_unsupported(torch.nn.Sequential(flat))
    finally:
        torch.distributed.destroy_process_group()


# ---- Children


def test_forked_children_end_by_sigterm(cluster: Cluster) -> None:
    forking = multiprocessing.get_context("fork")
    model = torch.nn.Linear(2, 2)
    optimizer = sgd(model)
    with attach(cluster, model, optimizer) as group:
        step(model, optimizer)
        child = forking.Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(10)
        assert child.exitcode == -signal.SIGTERM
        # A step in a child is none of the group, nor does its end of the block end the group.
        queue = forking.SimpleQueue()

        def train() -> None:
            step(model, optimizer)
            queue.put((group.step, group.sample_position))
            group.close()

        child = forking.Process(target=train)
        child.start()
        child.join(10)
        assert child.exitcode == 0 and queue.get() == (1, 16)
        assert group.step == 1 and signal.getsignal(signal.SIGTERM) == group._on_sigterm
        while True:
            step(model, optimizer)
    assert group.step == 16


# ---- What a program passes and reports


@pytest.mark.parametrize(("result", "reported"), [
    ((torch.tensor(0.9), torch.tensor([0.25])), 0.9),
    ((1 + 1e-9, 0.25), 1),
    ((93.7, 0.25), None), ((-0.1, 0.25), None), ((float("nan"), 0.25), None), ((0.9, float("inf")), None),
    (0.9, None), ((0.9,), None), (("a", "b"), None), (None, None), ((torch.ones(2), 0.25), None),
])
def test_results_of_evaluations_are_checked(result: Any, reported: float | None) -> None:
    if reported is not None:
        assert checked_result(result) == (pytest.approx(reported), 0.25)
        return
    with pytest.raises(cadre.CadreError, match="evaluate returned .* the accuracy, from 0 to 1"):
        checked_result(result)


def test_run_may_be_the_path_of_a_run_file(cluster: Cluster, tmp_path: Path) -> None:
    text = 'name: "NAME" batch_per_group: 4 averaging { every_steps: 4 } stop { steps: 8 }'
    for number, convert in enumerate((str, Path)):
        file = tmp_path / f"{number}.textproto"
        file.write_text(text.replace("NAME", f"file-{number}"))
        model = torch.nn.Linear(2, 2)
        optimizer = sgd(model)
        group = attach(cluster, model, optimizer, run=convert(file))
        for _ in group:
            step(model, optimizer)
        assert group.step == 8
    file.write_text(text + "\n averaging { every_stepz: 1 }")
    with pytest.raises(cadre.CadreError, match=r"1\.textproto:2"):
        attach(cluster, torch.nn.Linear(2, 2), sgd(torch.nn.Linear(2, 2)), run=str(file))
    with pytest.raises(FileNotFoundError, match="runs/none"):
        attach(cluster, torch.nn.Linear(2, 2), sgd(torch.nn.Linear(2, 2)), run="runs/none")


def test_missing_rank_is_named_while_the_program_waits(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_waits, "_WARN", 0.3)
    monkeypatch.setattr(_attach, "ranks_of_program", lambda: (0, 2))
    monkeypatch.setattr(_attach, "made_by_rank_0", lambda make: make())
    model = torch.nn.Linear(2, 2)
    group = cadre.attach(model, sgd(model), coordinator=cluster.address, run=json.loads(spec(groups=1)),
                         insecure=True, timeout=2)
    missing = "waiting for rank 1 (has not joined) of 2"
    with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError, match=re.escape(missing)):
        next(iter(group))
    assert [message.split(": ", 1)[1] for message in caplog.messages] == [missing]


def test_wait_for_a_run_is_reported(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_waits, "_WARN", 0.3)
    model = torch.nn.Linear(2, 2)
    group = cadre.attach(model, sgd(model), coordinator=cluster.address, run="none", insecure=True, timeout=2)
    with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError, match="run none"):
        next(iter(group))
    assert caplog.messages == ["run none: waiting for the run: the coordinator has none of this id or name"]


def test_host_name_that_is_no_name(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default name is the library's, which shortens that of the host."""
    model = torch.nn.Linear(2, 2)
    optimizer = sgd(model)
    for _ in attach(cluster, model, optimizer):
        workers = cluster.client.status()["workers"]
        assert [worker["name"].endswith(f"-{os.getpid()}") for worker in workers] == [True]
        step(model, optimizer)
