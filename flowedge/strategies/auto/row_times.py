"""The time of a piece of work by its number of rows, as measured in a request."""

from __future__ import annotations

from bisect import insort

import numpy as np

from flowedge.core.arrays import FloatArray

_FADE = 0.7  # weight of the former mean at each observation
# Assumed time of a row, as a share of the time of no rows, until two numbers of rows have been measured.
_PRIOR_SHARE = 0.3 / 64


class RowTimes:
    """Moving means by number of rows, linear between measured numbers.

    A device reads its weights once, however few the rows, until its arithmetic takes longer than that. So
    the time is convex in the rows, and the line between two measured numbers never promises too little time.
    Below the fewest rows that were measured the time is theirs, above the most it goes on as between the
    last two.
    """

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._means: dict[int, float] = {}

    def measured(self, rows: int) -> bool:
        """Return whether just this many rows were measured."""
        return rows in self._means

    def observe(self, rows: int, seconds: float) -> None:
        """Take in a measurement."""
        former = self._means.get(rows)
        if former is None:
            insort(self._counts, rows)
            self._means[rows] = seconds
        else:
            self._means[rows] = _FADE * former + (1 - _FADE) * seconds

    def curve(self, most: int) -> FloatArray:
        """Return the seconds of 1 to `most` rows: float64 [most], never falling; 0 while nothing is known."""
        return self._times(np.arange(1.0, most + 1))

    def seconds(self, rows: int) -> float:
        """Return the seconds of this many rows, 1 or more; 0 while nothing is known."""
        return float(self._times(np.array([float(rows)]))[0])

    def _times(self, rows: FloatArray) -> FloatArray:
        counts = np.array(self._counts, dtype=np.float64)
        if not len(counts):
            return np.zeros(len(rows))
        means = np.maximum.accumulate([self._means[count] for count in self._counts])
        if len(counts) == 1:
            lone: FloatArray = means[0] * (1 + _PRIOR_SHARE * rows) / (1 + _PRIOR_SHARE * counts[0])
            return lone
        slope = (means[-1] - means[-2]) / (counts[-1] - counts[-2])
        times: FloatArray = np.interp(rows, counts, means) + slope * np.maximum(rows - counts[-1], 0.0)
        return times
