"""How long a stage's forwards take, and so how many segments are worth computing in one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.strategies.auto.row_times import RowTimes

_WORTH = 0.98  # share of the time for each segment to which a larger forward must bring it down


class ForwardTimes:
    """Times of a stage's forwards by their rows, of all sessions together."""

    def __init__(self) -> None:
        self._times = RowTimes()

    def observe(self, rows: int, seconds: float) -> None:
        """Take in the time of a forward."""
        self._times.observe(rows, seconds)

    def worth(self, waiting: Sequence[int]) -> int:
        """Return how many of the first waiting segments are best computed together.

        A stage that always has segments waiting finishes the most of them if each forward takes the least
        time for each of its segments. Where rows cost nothing, that is the most segments; where a forward
        takes as long as its segments would apart, it is one, because the first results are out sooner then.

        Args:
            waiting: the rows of each segment, 1 or more segments.
        """
        seconds = self._times.times(np.cumsum(waiting).astype(np.float64))
        if not seconds[0]:
            return len(waiting)
        best, least = 1, float(seconds[0])
        for count, taken in enumerate(seconds.tolist(), start=1):
            if taken / count < least * (_WORTH if count > best else 1.0):
                best, least = count, taken / count
        return best
