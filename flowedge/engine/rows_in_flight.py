"""The number of rows in flight, as a mean over time."""

from __future__ import annotations

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.messages import Prune

_EMPTY = np.zeros(0, dtype=np.int64)


class RowsInFlightMeter:
    """Counts a session's segments from the moment they are handed to the link until they are settled.

    A segment is settled when it has been verified, or has come back without a live row and its turn has come.
    Segments are settled in the order in which they were sent. Means are over the time from the first mark to
    the latest.
    """

    def __init__(self) -> None:
        self._in_flight: dict[int, int] = {}  # rows as sent, by segment
        self._committed: dict[int, int] = {}  # rows of them that no prune can drop
        self._owners: IntArray = _EMPTY  # segment of each draft row that was neither accepted nor pruned
        self._settled = -1
        self._now = 0.0
        self._sums = np.zeros(3)  # row seconds, live row seconds, live segment seconds since the first mark
        self._begun: float | None = None
        self._marked = (0.0, np.zeros(3))  # seconds and sums, from the first mark to the latest

    def send(self, number: int, rows: int, now: float, *, committed: bool) -> None:
        """Count a segment that is sent. Draft rows are numbered in the order they are sent."""
        self._advance(now)
        self._in_flight[number] = rows
        if committed:
            self._committed[number] = rows
        else:
            self._owners = np.append(self._owners, np.full(rows, number, dtype=np.int64))

    def prune(self, prune: Prune, now: float) -> None:
        """Follow a change of the session's row sequence."""
        self._advance(now)
        self._owners = self._owners[prune.retained[prune.accepted :] - prune.context]

    def settle(self, number: int, now: float) -> None:
        """Count a segment, and the segments before it, no more."""
        self._advance(now)
        self._settled = number
        for earlier in [sent for sent in self._in_flight if sent <= number]:
            del self._in_flight[earlier]
            self._committed.pop(earlier, None)

    def mark(self, now: float) -> None:
        """Begin the time of the means at the first call; extend it to `now` at every later call."""
        self._advance(now)
        if self._begun is None:
            self._begun = now
        self._marked = now - self._begun, self._sums.copy()

    def means(self) -> tuple[float, float, float]:
        """Return the mean rows in flight, live rows of them, and segments with a live row; 0 over no time."""
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
                sum(self._in_flight.values()),
                len(alive) + sum(self._committed.values()),
                len(np.unique(alive)) + len(self._committed),
            ]
        )
