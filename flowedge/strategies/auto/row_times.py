"""The time of a piece of work by its number of rows, as measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf, log
from typing import NamedTuple

import numpy as np

from flowedge.core.arrays import FloatArray

_LEAST_S = 1e-9  # a time of 0 has no logarithm
_FADE = 0.8  # weight of the former mean at each observation
# Numbers of rows are measured in classes up to these bounds, beyond the last in one more.
_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# By how much a measurement may be off before it says that the device or the link itself has changed.
_NOISE = 0.15
# Assumed time of a row, as a share of the time of no rows, until two classes have been measured.
_PRIOR_SHARE = 0.3 / 64


class _Known(NamedTuple):
    """What the measurements say of k classes, the fewest rows first.

    Attributes:
        counts: rows; means: seconds, never falling: float64 [k] each.
        slope: seconds a row between the last two classes.
        around: float64 [4, k + 1]. Column i is of the numbers of rows above class i - 1 and up to class i:
            the rows and the seconds of class i, the seconds of class i - 1, and the seconds a row by which
            fewer rows take less at most. In the last column, above all classes, the seconds stay the same.
    """

    counts: FloatArray
    means: FloatArray
    slope: float
    around: FloatArray


class RowTimes:
    """Moving means by classes of rows, and what they tell about other numbers of rows.

    A device reads its weights once, however few the rows, until its arithmetic takes longer than that: the
    time rises ever more steeply, and never more than in proportion to the rows. So between two measured
    numbers of rows it is the least that this allows: that of the fewer rows, or else what remains of that of
    the more, less rows at the slope behind it or in proportion, whichever is longer. What is promised too
    little is soon measured. Below the fewest rows that were measured the time is theirs, above the most it
    goes on as between the last two.

    A device that has become slower is so for all numbers of rows, also for those that are not measured at
    present. So a mean that changes by more than noise takes the others along.
    """

    def __init__(self, *, linear: bool = False) -> None:
        """`linear` is for work that has no such threshold, as a transfer: straight lines between means, which
        change by a summand, where those of other work change by a factor."""
        self._linear = linear
        self._drift = 0.0  # by how much means have changed so far: seconds, or the logarithm of a factor
        self._drifts = [0.0] * (len(_BOUNDS) + 1)  # likewise, when each class was measured last
        self._rows = [0.0] * (len(_BOUNDS) + 1)  # means of each class; 0 rows where unmeasured
        self._seconds = [0.0] * (len(_BOUNDS) + 1)
        self._known: _Known | None = None  # until the next measurement
        self._curves: dict[int, FloatArray] = {}  # by `most`, until the next measurement

    def measured(self, rows: int) -> bool:
        """Return whether this many rows were measured, or others of their class."""
        return bool(self._rows[self._class_of(rows)])

    def observe(self, rows: int, seconds: float) -> None:
        """Take in a measurement."""
        index = self._class_of(rows)
        if not self._rows[index]:
            self._rows[index], self._seconds[index] = float(rows), seconds
        else:
            former, mean_rows = self._present(index), self._rows[index]
            share = rows / mean_rows  # more rows take longer, and not in more than proportion
            least, most = former * min(share, 1.0), former * max(share, 1.0)
            mean = _FADE * former + (1 - _FADE) * seconds
            if not least * (1 - _NOISE) <= seconds <= most * (1 + _NOISE):
                self._drift += (
                    mean - former if self._linear else log(max(mean, _LEAST_S) / max(former, _LEAST_S))
                )
            self._rows[index] = _FADE * mean_rows + (1 - _FADE) * rows
            self._seconds[index] = mean
        self._drifts[index] = self._drift
        self._known = None
        self._curves.clear()

    def _present(self, index: int) -> float:
        """Return the mean of a class, as it is at present."""
        drift, mean = self._drift - self._drifts[index], self._seconds[index]
        if not drift:
            return mean
        return max(mean + drift, 0.0) if self._linear else mean * float(np.exp(drift))

    def curve(self, most: int) -> FloatArray:
        """Return the seconds of 1 to `most` rows: float64 [most], never falling; 0 while nothing is known.

        The array is not to be changed.
        """
        if most not in self._curves:
            self._curves[most] = self.times(np.arange(1.0, most + 1))
        return self._curves[most]

    def seconds(self, rows: int) -> float:
        """Return the seconds of this many rows, 1 or more; 0 while nothing is known."""
        return float(self.curve(rows)[-1])

    @staticmethod
    def _class_of(rows: int) -> int:
        return bisect_left(_BOUNDS, rows)

    def times(self, rows: FloatArray) -> FloatArray:
        """Return the seconds of these numbers of rows, 1 or more, float64 [n]; 0 while nothing is known."""
        classes = [index for index, count in enumerate(self._rows) if count]
        if not classes:
            return np.zeros(len(rows))
        if len(classes) == 1:
            count, mean = self._rows[classes[0]], self._present(classes[0])
            lone: FloatArray = mean * (1 + _PRIOR_SHARE * rows) / (1 + _PRIOR_SHARE * count)
            return lone
        if self._known is None:
            self._known = self._evaluated(classes)
        counts, means, slope, around = self._known
        beyond = slope * np.maximum(rows - counts[-1], 0.0)
        if self._linear:
            straight: FloatArray = np.interp(rows, counts, means) + beyond
            return straight
        count_at, mean_at, mean_before, steepest = around.take(counts.searchsorted(rows), axis=1)
        fewer = np.minimum(rows - count_at, 0.0)
        least: FloatArray = np.maximum(mean_before, mean_at + fewer * steepest) + beyond
        return least

    def _evaluated(self, classes: Sequence[int]) -> _Known:
        """Return what the measurements of two classes or more say."""
        counts = [self._rows[index] for index in classes]
        seconds = [self._present(index) for index in classes]
        # Noise is evened out: the time of more rows is not shorter.
        rising, falling = accumulate(seconds, max), [*accumulate(reversed(seconds), min)]
        means = [(high + low) / 2 for high, low in zip(rising, reversed(falling), strict=True)]
        known = zip(counts, means, strict=True)
        slopes = [(later - mean) / (more - rows) for (rows, mean), (more, later) in pairwise(known)]
        proportional = [mean / rows for rows, mean in zip(counts, means, strict=True)]
        steepest = map(min, proportional, [*slopes, proportional[-1]])
        values = *counts, -inf, *means, means[-1], means[0], *means, *steepest, 0.0
        around = np.array(values).reshape(4, len(classes) + 1)
        return _Known(around[0, :-1], around[1, :-1], slopes[-1], around)
