"""Whether the device is slowed down while it serves, which is looked at every few seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from flowedge.core.log_fields import about
from flowedge.device.board.slowdowns import Slowdowns, Throttling, read_slowdowns

LOOK_S = 2.0
_log = logging.getLogger(__name__)


class ThrottlingWatch:
    """Reads what slows this device down.

    Attributes:
        state: what is known; read by Describe, metrics and systemd's status line.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        """root: the directory with /sys."""
        self._root = root
        self.state = Throttling()

    async def run(self) -> None:
        """Look without an end."""
        while True:
            # In a thread: reading a board's sensor may wait for another processor.
            self.take(await asyncio.to_thread(read_slowdowns, self._root), time.monotonic())
            await asyncio.sleep(LOOK_S)

    def take(self, reading: Slowdowns, now: float) -> None:
        """Take in a reading of the time `now`; tell the log when a slowdown of the device begins or ends."""
        before, self.state = self.state, self.state.after(reading, now)
        if self.state.is_on and not before.is_on:
            fields = about(event="throttled", reason=str(self.state))
            _log.warning("the device is slowed down: %s", self.state, extra=fields)
        elif before.is_on and not self.state.is_on:
            fields = about(event="throttling_ended", seconds=before.seconds, reason=str(before))
            _log.info("the device is no longer slowed down (%s)", before, extra=fields)
