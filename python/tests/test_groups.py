"""Programs as groups: agreement, failures, refusals; real processes over gRPC."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import Cluster, Program, wait_for

import cadre


def spec(name: str = "test", groups: int = 2, steps: int = 48, **averaging: Any) -> str:
    """A run whose first groups begin together, as long as they start within a minute."""
    return json.dumps({
        "name": name,
        "batch_per_group": 16,
        "averaging": {"every_steps": 8, **averaging},
        "cluster": {"groups": groups, "aggregators": 2, "rejoin_wait_ms": 60000},
        "stop": {"steps": steps},
    })


CODED = {"up": {"codec": "CODEC_INT8"}, "down": {"codec": "CODEC_E3M0"}}


def assert_agree(*programs: Program) -> dict[int, str]:
    """Every version that two programs have reported has one digest; returns all of them."""
    digests: dict[int, str] = {}
    for program in programs:
        for version, digest in program.versions().items():
            assert digests.setdefault(version, digest) == digest, f"version {version}"
    return digests


def last(program: Program) -> dict[str, Any]:
    return program.lines()[-1]


def versions_after(program: Program, count: int) -> None:
    """Waits until the program has reported `count` more versions."""
    before = max(program.versions())
    wait_for(lambda: max(program.versions()) > before + count, f"{count} versions")


def stop(cluster: Cluster, *programs: Program) -> None:
    """Stops the only run; the programs report the reason, and agree."""
    cluster.client.stop(cluster.client.status()["runs"][0]["run"], "the test is over")
    for program in programs:
        assert program.wait(30) == 1
        assert "the test is over" in program.err.read_text()
    assert_agree(*programs)


# A run without an end, because a program that begins after the end would submit another one.
ENDLESS = 100000


@pytest.mark.parametrize(
    "averaging",
    [{}, CODED, {"outer": {"nesterov": {}}, **CODED}, {"overlap": {"steps": 3}},
     {"fragments": {"count": 2}, **CODED}],
    ids=["fp32", "coded", "outer", "overlap", "fragments"],
)
def test_two_programs_agree(cluster: Cluster, averaging: dict[str, Any]) -> None:
    programs = [cluster.start(f"p{i}", "program.py", "--spec", spec(**averaging))
                for i in range(2)]
    for program in programs:
        program.succeed()
    digests = assert_agree(*programs)
    # Version 1 has the values of the first group.
    assert len(digests) >= 7
    assert last(programs[0])["digest"] == last(programs[1])["digest"]
    assert all(last(program)["step"] == 48 and last(program)["ended"] for program in programs)
    # Less than that of a uniform guess, log(4).
    assert last(programs[0])["loss"] < 1.35
    run = cluster.client.status()["runs"][0]
    assert run["state"] == "RUN_STATE_DONE"
    status = cluster.client.wait(run["run"], timeout=5)
    assert status["digest"] == last(programs[0])["digest"]
    # The library compares the digest of what it has read.
    model = cluster.client.pull(run["run"])
    assert model["0.weight"].shape == (96, 20)
    assert sum(array.size for array in model.values()) == int(run["parameters"])
    with pytest.raises(cadre.CadreError, match="no such run: run-9"):
        cluster.client.pull("run-9")


def test_first_values_are_those_of_one_group(cluster: Cluster) -> None:
    text = spec(steps=8)
    first = cluster.start("first", "program.py", "--spec", text)
    wait_for(lambda: cluster.client.status()["runs"], "the run")
    second = cluster.start("second", "program.py", "--spec", text, "--seed", "2")
    for program in (first, second):
        program.succeed()
    assert set(first.versions()) == set(second.versions()) == {1, 2}
    assert_agree(first, second)


def test_killed_program_rejoins(cluster: Cluster) -> None:
    arguments = ("--spec", spec(steps=ENDLESS, **CODED), "--slow", "0.02")
    stays = cluster.start("stays", "program.py", *arguments)
    killed = cluster.start("killed", "program.py", *arguments)
    wait_for(lambda: len(killed.versions()) > 2, "versions")
    killed.process.kill()
    versions_after(stays, 3)
    returned = cluster.start("returned", "program.py", *arguments)
    wait_for(lambda: len(returned.versions()) > 2, "the program to rejoin")
    versions_after(stays, 2)
    assert len(set(stays.versions()) & set(returned.versions())) > 2
    stop(cluster, stays, returned)
    assert_agree(stays, killed, returned)


def test_coordinator_and_aggregator_return(cluster: Cluster) -> None:
    arguments = ("--spec", spec(steps=ENDLESS, **CODED), "--slow", "0.01")
    programs = [cluster.start(f"p{i}", "program.py", *arguments) for i in range(2)]
    wait_for(lambda: all(len(program.versions()) > 2 for program in programs), "versions")
    cluster.kill_coordinator()
    cluster.return_coordinator()
    versions_after(programs[0], 2)
    cluster.restart_aggregator("a")
    versions_after(programs[0], 2)
    stop(cluster, *programs)
    assert last(programs[0])["discarded"] == last(programs[1])["discarded"] == 0


def test_terminated_program_leaves_after_a_version(cluster: Cluster) -> None:
    arguments = ("--spec", spec(steps=ENDLESS), "--slow", "0.02")
    programs = [cluster.start(f"p{i}", "program.py", *arguments) for i in range(2)]
    wait_for(lambda: len(programs[1].versions()) > 1, "versions")
    programs[1].process.send_signal(signal.SIGTERM)
    assert programs[1].wait(30) == 128 + signal.SIGTERM
    versions_after(programs[0], 1)
    assert_agree(*programs)
    stop(cluster, programs[0])


def assert_ends_before_it_begins(cluster: Cluster, program: Program) -> None:
    wait_for(lambda: cluster.client.status()["workers"], "the program to join")
    program.process.send_signal(signal.SIGTERM)
    assert program.wait(30) == 128 + signal.SIGTERM
    assert program.err.read_text() == ""
    assert program.lines() == []


def test_terminated_program_ends_before_it_begins(cluster: Cluster) -> None:
    assert_ends_before_it_begins(cluster, cluster.start("waits", "program.py", "--spec", spec(groups=2)))


def test_interrupt_leaves(cluster: Cluster) -> None:
    program = cluster.start("p", "program.py", "--spec", spec(groups=1, steps=ENDLESS))
    wait_for(lambda: len(program.versions()) > 1, "versions")
    program.process.send_signal(signal.SIGINT)
    assert program.wait(30) != 0
    assert "KeyboardInterrupt" in program.err.read_text()
    wait_for(lambda: not cluster.client.status()["workers"], "the lease to end", 2)


def test_other_parameters_are_refused(cluster: Cluster) -> None:
    parameters = [{"name": "weight", "shape": [3, 4], "trained": True}]
    other = [{"name": "weight", "shape": [3, 5], "trained": True}]
    run = json.loads(spec())
    run["model"] = {"opaque": {"parameter": parameters}}
    cluster.client.submit(run, join_existing=True)
    run["model"] = {"opaque": {"parameter": other}}
    with pytest.raises(cadre.CadreError, match=r"'weight' \[3, 4\].*'weight' \[3, 5\]"):
        cluster.client.submit(run, join_existing=True)
    program = cluster.start("p", "program.py", "--run", "test")
    assert program.wait() == 1
    error = program.err.read_text()
    assert "parameter 0 is 'weight' [3, 4] in the run, but '0.weight' [96, 20]" in error


def test_frozen_parameters_are_compared_and_not_exchanged(cluster: Cluster) -> None:
    text = spec(groups=1, steps=ENDLESS)
    frozen = cluster.start("frozen", "program.py", "--spec", text, "--freeze")
    wait_for(lambda: len(frozen.versions()) > 1, "versions")
    other = cluster.start("other", "program.py", "--spec", text, "--freeze", "--seed", "2")
    assert other.wait() == 1
    assert "'3.weight' [4, 96], frozen with digest" in other.err.read_text()
    trained = cluster.client.pull(cluster.client.status()["runs"][0]["run"])
    assert "3.weight" not in trained and trained["3.bias"].shape == (4,)
    stop(cluster, frozen)


def test_losses_and_evaluations_are_reported(cluster: Cluster) -> None:
    run = {**json.loads(spec(steps=48)), "model": {"opaque": {"epoch_samples": 16 * 2 * 16}}}
    programs = [cluster.start(f"p{i}", "program.py", "--spec", json.dumps(run), "--evaluate",
                              "--slow", "0.1") for i in range(2)]
    groups = wait_for(lambda: [g for g in cluster.client.status().get("groups", []) if g["step"] % 8],
                      "progress between two boundaries")
    assert groups[0]["loss"] > 0 and groups[0]["samples_per_second"] > 0
    for program in programs:
        program.succeed()
    run = cluster.client.status()["runs"][0]
    assert 0.3 < run["loss"] < 1.5
    assert run["test"]["version"] == run["version"] and run["test"]["samples"] == "500"
    assert run["test"]["accuracy"] > 0.3 and run["test"]["loss"] > 0
    assert 0 < run["test"]["seconds"] < run["evaluation_seconds"] < run["seconds"]


def test_losses_on_devices_are_read_at_boundaries(cluster: Cluster) -> None:
    """Also if a round overlaps the steps after the boundary."""
    torch = pytest.importorskip("torch")

    class OnDevice(torch.Tensor):
        """Records the steps after which its values are read."""

        device = property(lambda _: torch.device("cuda"))

        def item(self) -> float:
            steps.append(group.step)
            return super().item()

    steps: list[int] = []
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = json.loads(spec(groups=1, steps=32, overlap={"steps": 3}))
    group = cadre.attach(model, optimizer, coordinator=cluster.address, run=run, insecure=True)
    for _ in group:
        optimizer.zero_grad()
        model(torch.ones(2)).sum().backward()
        group.report(loss=torch.tensor(2.0).as_subclass(OnDevice))
        optimizer.step()
    # The round after step 8 is adopted after step 11.
    assert set(steps) == {8, 11, 16, 19, 24, 27, 32}
    assert len(steps) == 32
    assert cluster.client.status()["runs"][0]["loss"] == 2


def test_programs_of_a_run_evaluate_alike(cluster: Cluster) -> None:
    text = spec(groups=1, steps=ENDLESS)
    first = cluster.start("first", "program.py", "--spec", text, "--evaluate")
    wait_for(lambda: first.versions(), "a version")
    other = cluster.start("other", "program.py", "--run", "test")
    first.process.kill()
    assert other.wait() == 1
    error = other.err.read_text()
    assert "the run has 500 test samples, but this program evaluates 0" in error


def test_values_that_are_not_finite_are_refused(cluster: Cluster) -> None:
    text = spec(steps=48)
    bad = cluster.start("bad", "program.py", "--spec", text, "--nan-at", "16")
    good = cluster.start("good", "program.py", "--spec", text)
    assert bad.wait() == 1
    assert "element 3 of parameter '0.bias' is nan" in bad.err.read_text()
    good.succeed()
    assert last(good)["step"] == 48


def test_model_that_changes_is_refused(cluster: Cluster) -> None:
    program = cluster.start("p", "program.py", "--spec", spec(groups=1), "--resize-at", "16")
    assert program.wait() == 1
    error = program.err.read_text()
    assert "'3.bias' was [4] torch.float32 when the model was attached, and is [5]" in error


def test_optimizer_is_attached_once(cluster: Cluster) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"coordinator": cluster.address, "insecure": True, "timeout": 30}
    with cadre.attach(model, optimizer, run=json.loads(spec(groups=1)), **options):
        with pytest.raises(cadre.CadreError, match="attached to a group already"):
            cadre.attach(model, optimizer, run="test", **options)


def test_unknown_coordinator_and_run_are_reported() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(cadre.CadreError, match="127.0.0.1:9"):
        with cadre.attach(model, optimizer, coordinator="127.0.0.1:9", insecure=True, run="none",
                          timeout=1):
            pass


def test_coordinator_that_cannot_accept_ends_with_the_limit(tmp_path: Path) -> None:
    """gRPC accepts no connection any more when it has failed once."""
    port_file = tmp_path / "port"

    def start(limit: int) -> subprocess.Popen:
        port_file.unlink(missing_ok=True)
        process = subprocess.Popen(
            [f"{os.environ['CADRE_BIN']}/cadre-coordinator", "--insecure", "--listen=127.0.0.1:0",
             f"--store={tmp_path / 'store.db'}", f"--port_file={port_file}"], stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit // 2, limit)))
        wait_for(lambda: port_file.exists() and port_file.read_text().strip(), "the coordinator")
        return process

    process = start(64)
    try:
        address = ("127.0.0.1", int(port_file.read_text()))
        connections = [socket.create_connection(address) for _ in range(80)]
        error = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode == 1
    assert "Too many open files" in error and "(RLIMIT_NOFILE) is 64; raise it" in error
    for connection in connections:
        connection.close()
    process = start(1024)
    try:
        with cadre.Client(f"127.0.0.1:{port_file.read_text().strip()}", insecure=True) as client:
            assert client.status()["counters"]["limits_reached"] == "1"
    finally:
        process.kill()
        process.communicate()
