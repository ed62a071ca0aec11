"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def await_that(holds: Callable[[], object], what: str = "it did not happen", seconds: float = 60.0) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: with `what` is wrong, when it does not hold within so many seconds.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
