"""Programs of several ranks under torchrun."""

from __future__ import annotations

import pytest
from processes import Cluster, wait_for
from test_groups import CODED, assert_agree, last, spec


def versions_of(cluster: Cluster, name: str, ranks: int, *flags: str, **averaging: object) -> dict:
    """The digests of a run of two groups, of which the first is a program of `ranks` ranks."""
    # All groups begin together and take part in every round, so that equal runs have equal versions.
    text = spec(name, rejoin_ms=60000, min_groups=2, **averaging)
    arguments = ("--spec", text, "--exact")
    programs = [cluster.start(f"{name}0", "program.py", *arguments, *flags, ranks=ranks),
                cluster.start(f"{name}1", "program.py", *arguments)]
    for program in programs:
        program.succeed()
    return assert_agree(*programs)


@pytest.mark.parametrize("averaging", [{}, CODED], ids=["fp32", "coded"])
def test_ranks_equal_one_process(cluster: Cluster, averaging: dict) -> None:
    one = versions_of(cluster, "one", 1, **averaging)
    assert len(one) == 7
    assert versions_of(cluster, "sharded", 2, "--fsdp", **averaging) == one
    if not averaging:
        assert versions_of(cluster, "replicated", 2, "--ddp") == one


def test_program_of_two_ranks_survives_the_other_group(cluster: Cluster) -> None:
    arguments = ("--spec", spec(steps=400), "--slow", "0.02")
    ranks = cluster.start("ranks", "program.py", *arguments, "--fsdp", ranks=2)
    wait_for(lambda: ranks.versions(), "the ranks")
    other = cluster.start("other", "program.py", *arguments)
    wait_for(lambda: len(other.versions()) > 2, "versions")
    other.process.kill()
    ranks.succeed()
    assert last(ranks)["step"] == 400
    assert_agree(ranks, other)
