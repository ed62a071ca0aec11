"""File locks between processes; the kernel releases a lock when its process ends, however it ends."""

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
    """Lock an open file exclusively; return False if another descriptor holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, seconds: float = LOCK_S) -> Iterator[None]:
    """Hold the lock of a file, which is created; raise DeadlineError if it is not free within `seconds`."""
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
