"""Programs that pause, that are terminated with a short notice, and that end their loops early."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest
from processes import Cluster, Program, wait_for
from test_groups import CODED, ENDLESS, assert_agree, spec

_BATCH = 16


def trained(program: Program) -> int:
    """The last step that the program has reported. It does not report a step in which it leaves."""
    return max((line["trained"] for line in program.lines() if "trained" in line), default=0)


def run_of(cluster: Cluster) -> dict[str, Any]:
    return cluster.client.status()["runs"][0]


def end_run(cluster: Cluster, *programs: Program) -> None:
    cluster.client.stop(run_of(cluster)["run"], "the test is over")
    for program in programs:
        program.succeed(30)
        assert "the test is over" in program.lines()[-1]["error"]


@pytest.mark.parametrize("averaging", [{}, CODED], ids=["fp32", "coded"])
def test_pause_delays_others_for_the_grace_window(cluster: Cluster, averaging: dict[str, Any]) -> None:
    """The program pauses like one that evaluates. It keeps its generation, and its steps if codes keep them."""
    text = spec(steps=ENDLESS, min_grace_ms=1000, **averaging)
    pauses = cluster.start("pauses", "leaving_program.py", "--spec", text, "--slow", "0.05",
                           "--pause-at", "36", "--pause", "12")
    other = cluster.start("other", "leaving_program.py", "--spec", text, "--slow", "0.05")
    wait_for(lambda: trained(pauses) >= 36, "the pause")
    before = max(pauses.versions())
    wait_for(lambda: max(pauses.versions()) > before + 1, "the program to go on")
    end_run(cluster, other, pauses)
    assert_agree(other, pauses)
    times = [line["time"] for line in other.lines() if line.get("version", 0) >= 2]
    waits = sorted(end - begin for begin, end in zip(times, times[1:]))
    # The grace window, some heartbeats, and the period.
    assert waits[-1] < 5, waits
    assert len(waits) > 15, "it went on during the pause"
    discarded = [line["discarded"] for line in pauses.lines() if "version" in line][-1]
    assert discarded == 0 if averaging else 0 < discarded <= 8
    assert "groups_stalled" not in cluster.client.status()["counters"]


def test_compilation_delays_others_for_the_grace_window(cluster: Cluster) -> None:
    """It takes longer than the lease, at the first step, and the interpreter runs nothing else meanwhile."""
    seconds = 6
    text = spec(steps=ENDLESS, min_grace_ms=1000, **CODED)
    compiles = cluster.start("compiles", "leaving_program.py", "--spec", text, "--slow", "0.05",
                             "--compile", str(seconds))
    other = cluster.start("other", "leaving_program.py", "--spec", text, "--slow", "0.05")
    wait_for(lambda: any("compiled" in line for line in compiles.lines()), "the compilation")
    during = max(other.versions())
    wait_for(lambda: max(compiles.versions()) > during + 1, "the program to go on")
    counters = cluster.client.status()["counters"]
    end_run(cluster, other, compiles)
    assert_agree(other, compiles)
    times = [line["time"] for line in other.lines() if "version" in line]
    waits = [end - begin for begin, end in zip(times, times[1:])]
    assert during > 2 and max(waits) < seconds - 1, "the other group went on during the compilation"
    assert [line["discarded"] for line in compiles.lines() if "version" in line][-1] == 0
    assert counters["groups_formed"] == "2" and "groups_stalled" not in counters


def test_terminated_program_contributes_after_its_step(cluster: Cluster) -> None:
    text = spec(steps=ENDLESS, every_steps=240)
    arguments = ("--spec", text, "--slow", "0.05")
    stays = cluster.start("stays", "leaving_program.py", *arguments)
    leaves = cluster.start("leaves", "leaving_program.py", *arguments,
                           environment={"CADRE_PREEMPTION_SECONDS": "4"})
    wait_for(lambda: trained(leaves) > 20, "steps")
    leaves.process.send_signal(signal.SIGTERM)
    # The interpreter takes longer to end than the group.
    wait_for(lambda: any("left" in group["reason"] for group in cluster.client.status()["groups"]),
             "the group to leave", 30)
    assert leaves.wait(30) == 128 + signal.SIGTERM, leaves.err.read_text()
    steps = trained(leaves)
    assert steps < 200, "the rest of the period was longer than the notice"
    assert run_of(cluster)["version"] == 1, "the other group still trains"
    wait_for(lambda: max(stays.versions()) > 1, "the next version")
    contributed = int(run_of(cluster)["samples"]) // _BATCH - 240
    assert steps <= contributed <= steps + 1
    end_run(cluster, stays)


@pytest.mark.parametrize("asked_by", ["signal", "coordinator"])
def test_terminated_program_that_is_alone_makes_a_version(cluster: Cluster, asked_by: str) -> None:
    text = spec(groups=1, steps=ENDLESS, every_steps=500)
    leaves = cluster.start("leaves", "leaving_program.py", "--spec", text, "--slow", "0.05",
                           environment={"CADRE_PREEMPTION_SECONDS": "10"})
    wait_for(lambda: trained(leaves) > 20, "steps")
    if asked_by == "signal":
        leaves.process.send_signal(signal.SIGTERM)
    else:
        cluster.drain(leaves)
    assert leaves.wait(30) == 128 + signal.SIGTERM, leaves.err.read_text()
    assert run_of(cluster)["version"] == 2
    assert trained(leaves) <= run_of(cluster)["step"] <= trained(leaves) + 1


def test_program_whose_trainer_fails_leaves_with_the_reason(cluster: Cluster) -> None:
    """Trainers call `start`, and may end with an exception without another call of the group."""
    text = spec(steps=ENDLESS)
    fails = cluster.start("fails", "leaving_program.py", "--spec", text, "--fail-at", "20")
    stays = cluster.start("stays", "leaving_program.py", "--spec", text, "--slow", "0.02")
    assert fails.wait(60) == 1
    assert "ValueError: no such sample: 7" in fails.err.read_text()
    wait_for(lambda: any("left: ValueError: no such sample: 7" in group["reason"]
                         for group in cluster.client.status()["groups"]), "the reason", 5)
    step = trained(stays)
    wait_for(lambda: trained(stays) > step + 10, "the other group to go on", 10)
    end_run(cluster, stays)


def test_terminated_ranks_agree_on_the_last_step(cluster: Cluster) -> None:
    text = spec(groups=1, steps=ENDLESS, every_steps=500)
    ranks = cluster.start("ranks", "leaving_program.py", "--spec", text, "--slow", "0.05", "--ranks",
                          ranks=2, environment={"CADRE_PREEMPTION_SECONDS": "15"})
    wait_for(lambda: trained(ranks) > 20, "steps")
    ranks.process.send_signal(signal.SIGTERM)
    ranks.wait(30)
    run = wait_for(lambda: run_of(cluster) if run_of(cluster)["version"] > 1 else None, "the version")
    assert trained(ranks) <= run["step"] <= trained(ranks) + 1
    assert int(run["samples"]) == run["step"] * _BATCH


@pytest.mark.parametrize("ranks", [1, 2])
def test_program_ends_its_loop_before_the_run(cluster: Cluster, ranks: int) -> None:
    text = spec(groups=1, steps=40, every_steps=10)
    flags = ["--ranks"] if ranks > 1 else []
    first = cluster.start("first", "leaving_program.py", "--spec", text, *flags, "--end-at", "25", ranks=ranks)
    first.succeed(60)
    end = first.lines()[-1]
    assert end["ended"] and end["step"] == 25 and end["discarded"] == 0
    run = wait_for(lambda: run_of(cluster) if "ended" in run_of(cluster)["reason"] else None, "the reason")
    assert run["state"] == "RUN_STATE_RUNNING" and run["step"] == 25
    assert re.fullmatch("its programs have ended their loops at step 25 of 40; it continues when a program joins, "
                        "and `cadre stop run-1-test` ends it", run["reason"])
    model = cluster.client.pull(run["run"])
    assert model["weight"].flatten().tolist() == end["weight"], "the program has the version"
    second = cluster.start("second", "leaving_program.py", "--spec", text)
    second.succeed(60)
    assert second.lines()[0]["step"] == 25
    assert run_of(cluster)["state"] == "RUN_STATE_DONE"


def test_loop_that_ends_at_a_version_contributes_nothing(cluster: Cluster) -> None:
    text = spec(groups=1, steps=40, every_steps=10)
    program = cluster.start("p", "leaving_program.py", "--spec", text, "--end-at", "20")
    program.succeed(60)
    wait_for(lambda: "at step 20 of 40" in run_of(cluster)["reason"], "the reason")
    assert run_of(cluster)["version"] == 3 and program.lines()[-1]["version"] == 3


def test_ranks_that_end_their_loops_at_different_steps_are_named(cluster: Cluster) -> None:
    text = spec(groups=1, steps=40, every_steps=10)
    program = cluster.start("p", "leaving_program.py", "--spec", text, "--ranks", "--end-at", "13", "15", ranks=2)
    program.succeed(60)
    errors = {line["rank"]: line["error"] for line in program.lines() if "error" in line}
    for rank in (0, 1):
        assert ("rank 0 has ended its loop at step 13, but rank 1 has ended its loop at step 15"
                in errors[rank]), errors
