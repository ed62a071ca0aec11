"""The time of a piece of work by its number of rows, as measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from flowedge.core.arrays import FloatArray

_LEAST_S = 1e-9  # what took no time is no measure of a factor
_FADE = 0.8  # weight of the former mean at each observation
# Numbers of rows are measured in classes up to these bounds, beyond the last in one more.
_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# So many measurements in a row that are off by so much, all to one side, say that the device or the link
# itself has changed.
_IN_A_ROW, _NOISE = 3, 0.15
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


class _Measured(NamedTuple):
    """A measurement of a class; `off` is by how much it was off: seconds, or a factor."""

    number: int  # of the class
    rows: int
    seconds: float
    off: float


class RowTimes:
    """Moving means by classes of rows, and what they tell about other numbers of rows.

    A device reads its weights once, however few the rows, until its arithmetic takes longer than that: the
    time rises ever more steeply, and never more than in proportion to the rows. So between two measured
    numbers of rows it is the least that this allows: that of the fewer rows, or else what remains of that of
    the more, less rows at the slope behind it or in proportion, whichever is longer. What is promised too
    little is soon measured. Below the fewest rows that were measured the time is theirs, above the most it
    goes on as between the last two.

    A device that has become slower is so for all numbers of rows, also for those that are not measured at
    present. So where it takes longer than expected several times in a row, all means change by the least of
    these differences.
    """

    def __init__(self, *, linear: bool = False) -> None:
        """`linear` is for work that has no such threshold, as a transfer: straight lines between means, which
        change by a summand, where those of other work change by a factor."""
        self.changes = 0  # times that all means changed
        self._linear = linear
        self._off: list[_Measured] = []  # the latest, if they were off, all to one side
        self._before: tuple[list[float], list[float]] = [], []  # rows and seconds before these
        self._rows = [0.0] * (len(_BOUNDS) + 1)  # means of each class; 0 rows where unmeasured
        self._seconds = [0.0] * (len(_BOUNDS) + 1)
        self._known: _Known | None = None  # until the next measurement
        self._curves: dict[int, FloatArray] = {}  # by `most`, until the next measurement

    def measured(self, rows: int) -> bool:
        """Return whether this many rows were measured, or others of their class."""
        return bool(self._rows[self._class_of(rows)])

    def observe(self, rows: int, seconds: float) -> None:
        """Take in a measurement."""
        self._known = None
        self._curves.clear()
        number = self._class_of(rows)
        if not self._rows[number]:
            self._rows[number], self._seconds[number] = float(rows), seconds
            return
        measured = self._compared(number, rows, seconds)
        if measured is None:
            self._off = []
        else:
            if not self._off or self._is_longer(measured) != self._is_longer(self._off[0]):
                self._off, self._before = [], (self._rows.copy(), self._seconds.copy())
            self._off.append(measured)
        if len(self._off) == _IN_A_ROW:
            self._change()
        else:
            self._take(number, rows, seconds)

    def _compared(self, number: int, rows: int, seconds: float) -> _Measured | None:
        """Return a measurement that is off; None where it is as expected before the latest that were off."""
        counts, means = self._before if self._off else (self._rows, self._seconds)
        if not counts[number]:
            return None
        share = rows / counts[number]  # more rows take longer, and not in more than proportion
        expected = min(max(seconds, means[number] * min(share, 1.0)), means[number] * max(share, 1.0))
        comparable = self._linear or expected >= _LEAST_S
        if not comparable or abs(seconds - expected) <= _NOISE * expected:
            return None
        off = seconds - expected if self._linear else seconds / expected
        return _Measured(number, rows, seconds, off)

    def _is_longer(self, measured: _Measured) -> bool:
        return measured.off > (0.0 if self._linear else 1.0)

    def _change(self) -> None:
        """Change all means, because everything takes longer now, or less long."""
        off = [measured.off for measured in self._off]
        change = min(off) if self._is_longer(self._off[0]) else max(off)
        counts, means = self._before
        for number, mean in enumerate(means):
            if counts[number]:
                self._rows[number] = counts[number]
                self._seconds[number] = max(mean + change, 0.0) if self._linear else mean * change
        for measured in self._off:
            self._take(measured.number, measured.rows, measured.seconds)
        self._off = []
        self.changes += 1

    def _take(self, number: int, rows: int, seconds: float) -> None:
        self._rows[number] = _FADE * self._rows[number] + (1 - _FADE) * rows
        self._seconds[number] = _FADE * self._seconds[number] + (1 - _FADE) * seconds

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
            count, mean = self._rows[classes[0]], self._seconds[classes[0]]
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
        seconds = [self._seconds[index] for index in classes]
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
