"""Standard output of the programs that the tests start."""

from __future__ import annotations

import json
import sys
from typing import Any


def print_line(line: dict[str, Any]) -> None:
    """Prints a JSON object on a line of its own.

    One call writes the line together with its end: the ranks of a program share their output, and ``print`` writes
    the end separately if output is not buffered.
    """
    sys.stdout.write(json.dumps(line) + "\n")
