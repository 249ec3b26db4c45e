"""Parameters of fewer bits than fp32: what rounding removes is kept between boundaries."""

from __future__ import annotations

import json

import pytest
import torch
from processes import Cluster
from test_groups import assert_agree

from cadre._parameters import Found, Parameter, Role

# Below half a unit in the last place of 1 in bf16 and in fp16.
SMALL = 2.0**-13


def parameter_of(values: torch.Tensor) -> Parameter:
    return Parameter.of(Found.exchanged("w", values, Role.TRAINED))


def cycle(parameter: Parameter, change: float) -> None:
    """A boundary at which the version moves by `change`."""
    parameter.fetch(parameter.tensor, False)
    parameter.memory += change
    parameter.store(parameter.tensor, False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_steps_of_versions_accumulate(dtype: torch.dtype) -> None:
    parameter = parameter_of(torch.ones(5, dtype=dtype))
    for _ in range(64):
        cycle(parameter, SMALL)
    assert parameter.memory.tolist() == [1 + 64 * SMALL] * 5
    assert parameter.tensor.tolist() == [1 + 64 * SMALL] * 5


def test_changes_of_the_program_are_added() -> None:
    """Also if it is fetched repeatedly, and where it comes to a smaller unit in the last place."""
    torch.manual_seed(1)
    parameter = parameter_of(torch.zeros(5000, dtype=torch.bfloat16))
    parameter.memory.copy_(torch.randn(5000))
    version = parameter.memory.clone()
    parameter.store(parameter.tensor, False)
    adopted = parameter.tensor.float()
    for scale in (0.5, 0.26, 3.0):
        parameter.tensor.mul_(scale)
        parameter.fetch(parameter.tensor, False)
        expected = version + (parameter.tensor.float() - adopted)
        assert torch.allclose(parameter.memory, expected, rtol=0, atol=1e-6)
    assert parameter.unlike, "no element has come to a smaller unit in the last place"
    parameter.store(parameter.tensor, False)
    assert not parameter.unlike
    assert torch.equal(parameter.tensor, parameter.memory.to(torch.bfloat16))


def test_parts_of_a_large_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cadre._parameters._CHUNK", 7)
    test_changes_of_the_program_are_added()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_others_are_copied(dtype: torch.dtype) -> None:
    parameter = parameter_of(torch.ones(4, 2, dtype=dtype).t())
    parameter.fetch(parameter.tensor, False)
    parameter.memory += SMALL
    parameter.fetch(parameter.tensor, False)
    assert parameter.memory.tolist() == [1.0] * 8


def test_groups_agree_and_lose_no_outer_step(cluster: Cluster) -> None:
    """Each round moves the version by less than the rounding of the weights."""
    run = json.dumps({
        "name": "low", "batch_per_group": 16, "averaging": {"every_steps": 2, "min_groups": 2},
        "cluster": {"groups": 2, "aggregators": 2, "rejoin_wait_ms": 60000}, "stop": {"steps": 64},
    })
    programs = [cluster.start(f"p{i}", "drift_program.py", "--spec", run, "--drift", str(i * 2**-7))
                for i in range(2)]
    for program in programs:
        program.succeed()
    digests = assert_agree(*programs)
    assert len(digests) > 30
    # In each round after the first, which has the initial values, one group moves by a unit in the last
    # place, 2**-7, and the other not: the mean moves by half a unit, which rounding would remove.
    rounds = max(digests) - 1
    assert cluster.client.pull("low")["drift"].tolist() == [1 + rounds * 2**-8] * 3
