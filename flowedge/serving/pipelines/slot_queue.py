"""Requests that wait until a pipeline of their model takes another one."""

from __future__ import annotations

import asyncio
import bisect


class SlotQueue:
    """The most urgent request goes first; of equally urgent ones the first that came."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Event]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def goes_before(self, rank: int) -> bool:
        """Return whether a waiting request goes before a new one; rank: of the new one, 0 the most urgent."""
        return bool(self._waiting) and self._waiting[0][0] <= rank

    def enter(self, rank: int) -> asyncio.Event:
        """Have a request wait; return the event that is set when there may be room."""
        event = asyncio.Event()
        self._number += 1
        bisect.insort(self._waiting, (rank, self._number, event))
        return event

    def leave(self, event: asyncio.Event) -> None:
        """Take out a request, which has its turn or waits no longer."""
        self._waiting = [entry for entry in self._waiting if entry[2] is not event]

    def is_first(self, event: asyncio.Event) -> bool:
        """Return whether it is the turn of the request with this event."""
        return bool(self._waiting) and self._waiting[0][2] is event

    def wake(self) -> None:
        """Tell the first request that there may be room."""
        if self._waiting:
            self._waiting[0][2].set()
