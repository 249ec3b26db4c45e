"""Schedulers that follow the step of a group, and steps of several optimizers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cadre import CadreError  # noqa: E402
from cadre._schedules import Follower  # noqa: E402
from cadre._steps import JointSteps, find_optimizers  # noqa: E402

schedulers = torch.optim.lr_scheduler


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)


@pytest.mark.parametrize("make", [
    lambda optimizer: schedulers.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 40),
    lambda optimizer: schedulers.OneCycleLR(optimizer, max_lr=2.0, total_steps=100),
    lambda optimizer: schedulers.SequentialLR(
        optimizer, [schedulers.LinearLR(optimizer, 0.1, 1.0, 5), schedulers.StepLR(optimizer, 7, 0.5)], [5]),
])
def test_scheduler_is_at_the_step(make: Callable[[Any], Any]) -> None:
    model = torch.nn.Linear(1, 1)
    usual, followed = sgd(model), sgd(model)
    scheduler, reference = make(followed), make(usual)
    rates = []
    for _ in range(31):
        rates.append({key: usual.param_groups[0][key] for key in ("lr", "momentum")})
        usual.step()
        reference.step()
    follower = Follower(scheduler)
    for step in (0, 12, 30, 3, 3, 29):
        follower.move_to(step)
        for key, value in rates[step].items():
            assert followed.param_groups[0][key] == pytest.approx(value)
        assert scheduler.last_epoch == step


def test_scheduler_of_a_program_that_continues(caplog: pytest.LogCaptureFixture) -> None:
    optimizer = sgd(torch.nn.Linear(1, 1))
    scheduler = schedulers.StepLR(optimizer, 10)
    optimizer.step()
    for _ in range(15):
        scheduler.step()
    follower = Follower(scheduler)
    follower.move_to(25)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    with caplog.at_level(logging.WARNING):
        follower.move_to(5)
    assert scheduler.last_epoch == 15
    assert "at step 5, but the scheduler began at step 15" in caplog.text


def test_what_cannot_follow_is_refused() -> None:
    optimizer = sgd(torch.nn.Linear(1, 1))
    with pytest.raises(CadreError, match="ReduceLROnPlateau depends on measured values"):
        Follower(schedulers.ReduceLROnPlateau(optimizer))
    with pytest.raises(CadreError, match="object is not a torch.optim.lr_scheduler"):
        Follower(object())


def test_a_step_is_one_of_each_optimizer() -> None:
    first, second = (sgd(torch.nn.Linear(1, 1)) for _ in range(2))
    steps: list[int] = []
    hooks = JointSteps(find_optimizers([first, second, first]), lambda: steps.append(1))
    for count, one in ((0, first), (0, first), (1, second), (1, second), (2, first)):
        one.step()
        assert len(steps) == count
    hooks.remove()
    first.step()
    second.step()
    assert len(steps) == 2
    with pytest.raises(CadreError, match="list of optimizers is empty"):
        find_optimizers([])
