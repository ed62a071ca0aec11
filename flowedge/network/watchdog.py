"""A watchdog for blocking calls that may never return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Watchdog:
    """Calls `on_expiry` in a thread of its own if `extend` is not called for a number of seconds.

    Attributes:
        expired: whether `on_expiry` was called.
    """

    def __init__(self, seconds: float, on_expiry: Callable[[], object]) -> None:
        self.expired = False
        self._seconds, self._on_expiry = seconds, on_expiry
        self._until = time.monotonic() + seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def extend(self) -> None:
        """Start the time anew."""
        self._until = time.monotonic() + self._seconds

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while (left := self._until - time.monotonic()) > 0:
            if self._stopped.wait(left):
                return
        self.expired = True
        self._on_expiry()
