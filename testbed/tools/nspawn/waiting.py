"""Conditions of the proof: those that hold now, and those that come to hold."""

from __future__ import annotations

import time
from collections.abc import Callable

from flowedge.core.errors import DeadlineError, FlowEdgeError

_POLL_S = 0.5


def check(holds: bool, otherwise: str) -> None:
    """FlowEdgeError, which says what is the case, when something does not hold."""
    if not holds:
        raise FlowEdgeError(otherwise)


def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until something holds. DeadlineError, which says what did not come to hold."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise DeadlineError(f"not within {seconds:g} s: {what}")
        time.sleep(_POLL_S)
