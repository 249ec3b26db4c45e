"""A group that does not receive the decision on its contribution: its change is in the model exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Cluster, Program, wait_for
from relay import Relay
from test_groups import ENDLESS, spec, stop, versions_after


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path, lease_ms=20000)
    yield running
    running.stop()


def newest(program: Program) -> dict[str, Any]:
    return [line for line in program.lines() if "version" in line][-1]


@pytest.mark.parametrize("codec", ["CODEC_INT8", "CODEC_E3M0"])
def test_lost_decision(cluster: Cluster, codec: str) -> None:
    text = spec(groups=3, steps=ENDLESS, quorum=2, min_grace_ms=500, up={"codec": codec})
    relay = Relay(cluster.address)
    others = [cluster.start(f"other-{i}", "once_program.py", "--spec", text) for i in range(2)]
    once = cluster.start("once", "once_program.py", "--spec", text, "--once", "24",
                         coordinator=relay.address)
    wait_for(lambda: any("added" in line for line in once.lines()), "the step that adds")
    before = max(once.versions())
    relay.lose_answers()
    wait_for(lambda: max(others[0].versions()) > before, "the round with the contribution")
    relay.go_down()
    included = newest(others[0])
    assert included["least"] == included["greatest"] == pytest.approx(1 / 3, rel=1e-6)
    versions_after(others[0], 2)
    assert max(once.versions()) == before, "it has no decision"
    relay.return_()
    during = max(others[0].versions())
    wait_for(lambda: max(once.versions()) > during + 2, "the program to go on")
    versions_after(others[0], 2)
    for program in (others[0], once):
        line = newest(program)
        assert (line["least"], line["greatest"]) == (included["least"], included["greatest"])
    assert newest(once)["discarded"] == 0
    assert cluster.client.status()["counters"]["groups_formed"] == "3"
    assert f"to round {before + 1} was refused" not in cluster.cadre("events")
    stop(cluster, *others, once)
    relay.close()
