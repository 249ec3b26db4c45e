"""One of five groups contributes what it has not learned: the run is as good as without it, and names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lying_program import LIES
from processes import Cluster, wait_for

ROUNDS = 12
EVERY_STEPS = 25


def spec(name: str, groups: int, screen: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "batch_per_group": 64,
        "averaging": {"every_steps": EVERY_STEPS, "screen": screen},
        "cluster": {"groups": groups, "aggregators": 2, "rejoin_wait_ms": 60000},
        "stop": {"steps": ROUNDS * EVERY_STEPS},
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path, lease_ms=20000)
    yield running
    running.stop()


def test_lies(cluster: Cluster) -> None:
    runs = {"without": spec("without", 4, {})}
    for lie in LIES:
        runs[lie] = spec(lie.replace(" ", "-"), 5, {"exclude": {}})
    runs["default"] = spec("default", 5, {})
    runs["off"] = spec("off", 5, {"off": {}})
    others = {"default": "none", "off": "minus ten times"}
    honest = [{"spec": run, "lie": "none"} for run in runs.values()]
    lying = [{"spec": run, "lie": others.get(lie, lie)} for lie, run in runs.items() if lie != "without"]
    programs = [cluster.start(f"honest-{i}", "lying_program.py", "--number", str(i), "--runs", json.dumps(honest))
                for i in range(4)]
    cluster.start("liar", "lying_program.py", "--number", "4", "--runs", json.dumps(lying))
    wait_for(lambda: len(programs[0].lines()) == len(runs), "all runs", seconds=300)
    results = {line["run"]: line for line in programs[0].lines()}
    alone = results["without"]["accuracy"]
    print(json.dumps({lie: results[run["name"]].get("accuracy") for lie, run in runs.items()}))
    assert alone > 0.75
    events = cluster.cadre("events")
    numbers = {run["name"]: run["run"] for run in cluster.client.status()["runs"]}
    assert results["off"]["accuracy"] < alone - 0.1
    for lie, run in runs.items():
        if lie == "off":
            continue
        assert results[run["name"]]["accuracy"] > alone - 0.003, lie
        if lie == "nan":
            # The rank itself finds what is not finite, and contributes nothing.
            assert any("has ended" in line and " is nan" in line for line in events.splitlines()), events
            continue
        named = [line for line in events.splitlines() if numbers[run["name"]] in line and "was left out" in line]
        if lie in ("without", "none", "default"):
            assert not named
        else:
            assert any("to round 3 " in line or "to round 4 " in line for line in named), (lie, named)
