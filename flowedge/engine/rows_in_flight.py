"""Rows under way, as means over time: what the draft node knows of them without asking the strategy."""

from __future__ import annotations

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.messages import Prune

_EMPTY = np.zeros(0, dtype=np.int64)


class RowsInFlightMeter:
    """Follows a session's segments from when they are handed to the link until their fate is known.

    That is when they have been verified, or have come back without a live row and their turn has come; it is
    known in the order in which they were sent. Means are over the time between the first mark and the latest.
    """

    def __init__(self) -> None:
        self._under_way: dict[int, int] = {}  # rows as sent, by segment
        self._committed: dict[int, int] = {}  # those of them that no prune touches
        self._owners: IntArray = _EMPTY  # segment of each draft row that was neither accepted nor pruned
        self._settled = -1
        self._now = 0.0
        self._sums = np.zeros(3)  # row seconds, live row seconds, live segment seconds since the first mark
        self._begun: float | None = None
        self._marked = (0.0, np.zeros(3))  # seconds and sums, from the first mark to the latest

    def send(self, number: int, rows: int, now: float, *, committed: bool) -> None:
        """A segment of `rows` rows is on its way; draft rows are numbered in the order they are sent."""
        self._advance(now)
        self._under_way[number] = rows
        if committed:
            self._committed[number] = rows
        else:
            self._owners = np.append(self._owners, np.full(rows, number, dtype=np.int64))

    def prune(self, prune: Prune, now: float) -> None:
        """The session's sequence has changed."""
        self._advance(now)
        self._owners = self._owners[prune.retained[prune.accepted :] - prune.context]

    def settle(self, number: int, now: float) -> None:
        """The fate of a segment, and of those before it, is known."""
        self._advance(now)
        self._settled = number
        for earlier in [sent for sent in self._under_way if sent <= number]:
            del self._under_way[earlier]
            self._committed.pop(earlier, None)

    def mark(self, now: float) -> None:
        """Means begin here, the first time; after that they extend to here."""
        self._advance(now)
        if self._begun is None:
            self._begun = now
        self._marked = now - self._begun, self._sums.copy()

    def means(self) -> tuple[float, float, float]:
        """Rows under way, those of them that are alive, segments that hold a live one; 0 over no time."""
        seconds, sums = self._marked
        if seconds <= 0:
            return 0.0, 0.0, 0.0
        rows, alive, segments = (sums / seconds).tolist()
        return rows, alive, segments

    def _advance(self, now: float) -> None:
        elapsed, self._now = now - self._now, now
        if self._begun is None or elapsed <= 0:
            return
        alive = self._owners[self._owners > self._settled]
        self._sums += elapsed * np.array(
            [
                sum(self._under_way.values()),
                len(alive) + sum(self._committed.values()),
                len(np.unique(alive)) + len(self._committed),
            ]
        )
