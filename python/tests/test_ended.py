"""Runs that have ended: their names, submissions that they answer, and their last version."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
from processes import Cluster
from test_groups import last, spec

import cadre
from cadre import _library

Names = Sequence[tuple[str, numpy.ndarray]]


def load(address: str, run: str, parameters: Names, skip: int = 0) -> tuple[str, _library.GroupState, str]:
    """Loads the newest version into the parameters. Returns the error, the state and the id of the run.

    The first `skip` elements of the first parameter are another rank's.
    """
    library = _library.load()
    options = _library.GroupOptions(coordinator=address.encode(), insecure=1, run=run.encode(), program=b"p", ranks=1,
                                    dial_seconds=10)
    group = library.cadre_group_open(ctypes.byref(options))
    try:
        for number, (name, values) in enumerate(parameters):
            shape = (ctypes.c_uint64 * values.ndim)(*values.shape)
            trained = int("running" not in name)
            part = skip > 0 and number == 0
            pointer = values.ctypes.data
            assert library.cadre_group_add_parameter(group, name.encode(), shape, values.ndim, trained,
                                                     None if part else pointer) == 0
            if part:
                assert library.cadre_group_add_part(group, skip, values.size, pointer + 4 * skip) == 0
        failed = library.cadre_group_load(group, run.encode())
        state = _library.GroupState()
        library.cadre_group_get_state(group, ctypes.byref(state))
        error = library.cadre_group_error(group).decode() if failed else ""
        return error, state, library.cadre_group_run(group).decode()
    finally:
        library.cadre_group_close(group, b"")


def test_a_program_loads_the_last_version(cluster: Cluster, tmp_path: Path) -> None:
    program = cluster.start("p", "program.py", "--spec", spec(groups=1, steps=16))
    program.succeed()
    run = cluster.client.run_status("test")["run"]
    cluster.client.wait("test", timeout=30)
    expected = cluster.client.pull("test")
    # In the order of the run.
    parameters = [(name, numpy.full(expected[name].shape, -1, numpy.float32)) for name in (
        "0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias", "1.running_mean", "1.running_var")]
    error, state, loaded = load(cluster.address, "test", parameters, skip=5)
    assert error == ""
    assert (loaded, state.step, state.version) == (run, 16, last(program)["version"])
    assert f"{state.digest:016x}" == last(program)["digest"]
    assert parameters[0][1].flat[:5].tolist() == [-1] * 5
    parameters[0][1].flat[:5] = expected["0.weight"].flat[:5]
    for name, values in parameters:
        assert numpy.array_equal(values, expected[name]), name
    # Other parameters than those of the run change nothing.
    other = [("0.weight", numpy.zeros((3, 3), numpy.float32))]
    error, state, loaded = load(cluster.address, run, other)
    assert error.startswith(f"run {run}: parameter 0 is '0.weight' [96, 20] in the run, but '0.weight' [3, 3]")
    assert loaded == "" and not other[0][1].any()
    error, _, _ = load(cluster.address, "unknown", parameters)
    assert error == "no such run: unknown"


def test_submissions_join_ended_runs(cluster: Cluster) -> None:
    library = _library.load()

    def submit(run: str, join: int) -> dict:
        answer = library.cadre_client_submit(cluster.client._handle, run.encode(), join)
        return cluster.client._answer(answer)

    def complete(text: str) -> str:
        model = {"opaque": {"parameter": [{"name": "w", "shape": [2], "trained": True}]}}
        return json.dumps({**json.loads(text), "model": model})

    run = complete(spec())
    first = submit(run, 2)
    assert first == {"run": "run-1-test", "ended": False}
    assert submit(run, 1) == first
    cluster.client.stop("test", "enough")
    with pytest.raises(cadre.CadreError, match="run-1-test of the same name was stopped before its end: enough"):
        submit(run, 2)
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(cadre.CadreError, match="stopped before its end: enough.*; restart=True submits a new run$"):
        cadre.attach(model, optimizer, coordinator=cluster.address, insecure=True, run=json.loads(spec()))
    assert submit(run, 1)["run"] == "run-2-test"
    # The run of this name has not ended now.
    with pytest.raises(cadre.CadreError, match="has the same name and another spec") as refused:
        cadre.attach(model, optimizer, coordinator=cluster.address, insecure=True, run=json.loads(spec()))
    assert "restart=True" not in str(refused.value)
    with pytest.raises(cadre.CadreError, match="give 0, 1 or 2"):
        submit(run, 3)
    cluster.start("p", "program.py", "--spec", spec("other", groups=1, steps=16)).succeed()
    cluster.client.wait("other", timeout=30)
    ended = cluster.client.run_status("other")["run"]
    parameters = cluster.client.status("other")["runs"][0]["parameters"]
    assert int(parameters) > 0
    with pytest.raises(cadre.CadreError, match=f"run {ended} has the same name and another spec"):
        submit(complete(spec("other", groups=1, steps=16)), 2)
