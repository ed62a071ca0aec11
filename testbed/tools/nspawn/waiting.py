"""Conditions of the proof, true now or true in time, and tasks that are done at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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


def together(*tasks: Callable[[], object]) -> None:
    """Run tasks at the same time, and wait for all of them. Raises the error of the first that failed."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        for running in [pool.submit(task) for task in tasks]:
            running.result()
