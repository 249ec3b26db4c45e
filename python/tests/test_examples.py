"""The examples train, and differ from the plain scripts in few lines."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from processes import Cluster


@pytest.mark.parametrize("name", ["fashion_mnist", "character_gpt"])
def test_example(cluster: Cluster, root: Path, name: str) -> None:
    folder = root / "python" / "examples"
    plain = (folder / f"{name}.py").read_text().splitlines()
    changed = (folder / f"{name}_cadre.py").read_text().splitlines()
    added = [line for line in difflib.ndiff(plain, changed) if line.startswith("+ ") and line[2:].strip()]
    # The first line is the description of the file.
    assert len(added) - 1 <= 10, added
    programs = [cluster.start(f"p{i}", folder / f"{name}_cadre.py", "--steps", "100")
                for i in range(2)]
    for program in programs:
        program.succeed(240)
    results = [program.out.read_text() for program in programs]
    assert results[0] == results[1] or name == "character_gpt"
    value = float(results[0].split()[-1])
    assert value > 0.7 if name == "fashion_mnist" else value < 3.2, results
