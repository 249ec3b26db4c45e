"""Fixtures of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def root() -> Path:
    return Path(__file__).parent.parent.parent
