"""Waking an event loop at a time more exactly than its own timers, which round up to milliseconds."""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable


class PreciseTimer:
    """Calls functions at times of time.monotonic(), on the event loop in which the timer was made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._stopped = False
        threading.Thread(target=self._run, name="precise-timer", daemon=True).start()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call `action` at `when`, or at once if `when` has passed. Actions of one time keep their order."""
        with self._changed:
            self._count += 1
            heapq.heappush(self._waiting, (when, self._count, action))
            self._changed.notify()

    async def sleep_until(self, when: float) -> None:
        """Sleep until `when`."""
        if when <= time.monotonic():
            return
        woken = asyncio.Event()
        self.at(when, woken.set)
        await woken.wait()

    def stop(self) -> None:
        """Drop all actions that have not been called yet."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._stopped:
                left = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                _, _, action = heapq.heappop(self._waiting)
                try:
                    self._loop.call_soon_threadsafe(action)
                except RuntimeError:  # the loop is closed, so that no task waits any more
                    return
