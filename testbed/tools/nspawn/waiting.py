"""Conditions of the proof: true now, or true in time."""

from __future__ import annotations

import time
from collections.abc import Callable

from flowedge.core.errors import DeadlineError, FlowEdgeError

_POLL_S = 0.5


def check(holds: bool, otherwise: str) -> None:
    """Check that a condition holds.

    Raises:
        FlowEdgeError: when it does not; `otherwise` says what is the case.
    """
    if not holds:
        raise FlowEdgeError(otherwise)


def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds.

    Raises:
        DeadlineError: when it does not in time; it names the condition.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise DeadlineError(f"not within {seconds:g} s: {what}")
        time.sleep(_POLL_S)
