"""Ends a blocking call that nothing is heard of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType


class Watchdog:
    """Calls `bark` in a thread of its own when `extend` was not called for so many seconds.

    Attributes:
        expired: whether it did.
    """

    def __init__(self, seconds: float, bark: Callable[[], object]) -> None:
        self.expired = False
        self._seconds, self._bark = seconds, bark
        self._until = time.monotonic() + seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def extend(self) -> None:
        """The time begins anew."""
        self._until = time.monotonic() + self._seconds

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while (left := self._until - time.monotonic()) > 0:
            if self._stopped.wait(left):
                return
        self.expired = True
        self._bark()
