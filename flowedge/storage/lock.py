"""Locks between processes; the system lets go of them when a process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowedge.core.errors import DeadlineError

LOCK_S = 30.0
_POLL_S = 0.01


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this descriptor alone; False when somebody else has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, seconds: float = LOCK_S) -> Iterator[None]:
    """Hold the lock that goes by a file, which is made. DeadlineError when it is not free in time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise DeadlineError(f"the lock {path} was not free within {seconds:g} s")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
