"""How long a process has from a request to end until it must have ended."""

from __future__ import annotations

import math
import os

from cadre.errors import CadreError

# Seconds, unless CADRE_PREEMPTION_SECONDS has them: what Kubernetes and most providers of preemptible
# machines permit.
_NOTICE = 30.0


def notice_seconds() -> float:
    """Seconds that this process may take to leave. Raises CadreError."""
    text = os.environ.get("CADRE_PREEMPTION_SECONDS", "")
    try:
        seconds = float(text) if text else _NOTICE
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise CadreError(f"CADRE_PREEMPTION_SECONDS is '{text}'; it must be a number of seconds")
    return seconds
