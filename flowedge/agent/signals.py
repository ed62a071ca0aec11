"""The signals that tell a process to stop."""

from __future__ import annotations

import asyncio
import signal


class Signals:
    """SIGTERM and SIGINT: the first signal sets `stop`, the second sets `hurry`.

    Attributes:
        last: number of the signal that came last; 0 before.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.last = 0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._come, number)

    def _come(self, number: int) -> None:
        self.last = number
        (self.hurry if self.stop.is_set() else self.stop).set()
