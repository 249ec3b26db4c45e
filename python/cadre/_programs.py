"""The commands of a wheel that contains the programs (deploy/wheel.sh): each becomes its program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def _execute(program: str) -> NoReturn:
    path = str(Path(__file__).parent / "bin" / program)
    os.execv(path, [path, *sys.argv[1:]])


def cadre() -> NoReturn:
    _execute("cadre")


def coordinator() -> NoReturn:
    _execute("cadre-coordinator")


def aggregator() -> NoReturn:
    _execute("cadre-aggregator")


def worker() -> NoReturn:
    _execute("cadre-worker")
