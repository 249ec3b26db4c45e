"""Programs of several ranks under torchrun."""

from __future__ import annotations

import re
import socket

import pytest
from processes import Cluster, wait_for
from test_groups import CODED, assert_agree, last, spec


def versions_of(cluster: Cluster, name: str, ranks: int, *flags: str, **averaging: object) -> dict:
    """The digests of a run of one group, a program of `ranks` ranks.

    A second group would begin at another moment in every run, and contribute fewer steps at first.
    """
    text = spec(name, groups=1, **averaging)
    program = cluster.start(name, "program.py", "--spec", text, "--exact", *flags, ranks=ranks)
    program.succeed()
    return assert_agree(program)


@pytest.mark.parametrize("averaging", [{}, CODED], ids=["fp32", "coded"])
def test_ranks_equal_one_process(cluster: Cluster, averaging: dict) -> None:
    one = versions_of(cluster, "one", 1, **averaging)
    assert len(one) == 7
    assert versions_of(cluster, "sharded", 2, "--fsdp=rows", **averaging) == one
    if not averaging:
        assert versions_of(cluster, "replicated", 2, "--ddp") == one


def test_placements_equal_one_process(cluster: Cluster) -> None:
    one = versions_of(cluster, "one", 1)
    assert versions_of(cluster, "columns", 2, "--fsdp=columns") == one
    assert versions_of(cluster, "replicas", 4, "--fsdp=replicas") == one
    # Strided shards of 7 and 3 rows.
    assert versions_of(cluster, "tensor", 4, "--fsdp=tensor") == one


@pytest.mark.parametrize("averaging", [{}, CODED], ids=["fp32", "coded"])
def test_ranks_of_a_pipeline_equal_one_process(cluster: Cluster, averaging: dict) -> None:
    one = versions_of(cluster, "one", 1, **averaging)
    assert versions_of(cluster, "pipeline", 2, "--pipeline", **averaging) == one


@pytest.mark.parametrize(("when", "where"), [("first", ""), ("later", "step 7: .*; version 1 is kept")])
def test_ranks_with_different_values_are_refused(cluster: Cluster, when: str, where: str) -> None:
    program = cluster.start("p", "rank_program.py", "--spec", spec(groups=1), "--differ", when, ranks=2)
    program.succeed(60)
    errors = {line["rank"]: line["error"] for line in program.lines()}
    for rank in (0, 1):
        assert "parameter 'weight' has other values on rank 1 than on rank 0" in errors[rank]
        assert re.search(where, errors[rank])


def test_rank_that_leaves_ends_the_program(cluster: Cluster) -> None:
    """Also if the program is between two boundaries."""
    program = cluster.start("p", "rank_program.py", "--spec", spec(groups=1, steps=100000), "--steps", "20",
                            ranks=2)
    program.succeed(60)
    lines = {line["rank"]: line for line in program.lines()}
    assert lines[1]["step"] == 20
    assert "rank 1 of this program has left: its part is done" in lines[0]["error"]


def test_killed_rank_is_named_and_ends_the_program(cluster: Cluster) -> None:
    """The ranks have no launcher that would end the other one."""
    text = spec(groups=1, steps=100000, every_steps=4)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        cluster.start(f"rank-{rank}", "rank_program.py", "--spec", text, environment={
            "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        for rank in (0, 1)
    ]
    status = cluster.client.status
    wait_for(lambda: any(run["version"] > 0 for run in status()["runs"]), "a version")
    ranks[1].process.kill()
    killed = rf"rank 1 \('[^']+-{ranks[1].process.pid}' on [^ ]+, no message since [-0-9]+ [0-9:]+ UTC\)"
    wait_for(lambda: re.search(f"waits for {killed} of 2; the program ends at .* without it",
                               status()["runs"][0]["reason"]), "the reason of the run")
    ranks[0].succeed(120)
    error = ranks[0].lines()[0]["error"]
    assert re.search(f"{killed} of this program has not returned", error), error
    assert re.search(f"waiting for {killed} of 2", ranks[0].err.read_text())
    assert re.search(f"a program of 2 ranks was ended: {killed}", status()["runs"][0]["warnings"][0])


def test_program_of_two_ranks_survives_the_other_group(cluster: Cluster) -> None:
    arguments = ("--spec", spec(steps=400), "--slow", "0.02")
    ranks = cluster.start("ranks", "program.py", *arguments, "--fsdp=rows", ranks=2)
    other = cluster.start("other", "program.py", *arguments)
    wait_for(lambda: len(other.versions()) > 2, "versions")
    other.process.kill()
    ranks.succeed()
    assert last(ranks)["step"] == 400
    assert_agree(ranks, other)
