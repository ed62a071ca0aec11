"""The time of a piece of work by its number of rows, as measured."""

from __future__ import annotations

from bisect import bisect_left
from math import log

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray

_LEAST_S = 1e-9  # a time of 0 has no logarithm
_FADE = 0.8  # weight of the former mean at each observation
# Numbers of rows are measured in classes up to these bounds, beyond the last in one more.
_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# By how much a measurement may be off before it says that the device or the link itself has changed.
_NOISE = 0.15
# Assumed time of a row, as a share of the time of no rows, until two classes have been measured.
_PRIOR_SHARE = 0.3 / 64


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
        self._drifts: FloatArray = np.zeros(len(_BOUNDS) + 1)  # likewise, when each class was measured last
        self._rows: FloatArray = np.zeros(len(_BOUNDS) + 1)  # means of each class; 0 rows where unmeasured
        self._seconds: FloatArray = np.zeros(len(_BOUNDS) + 1)

    def measured(self, rows: int) -> bool:
        """Return whether this many rows were measured, or others of their class."""
        return bool(self._rows[self._class_of(rows)])

    def observe(self, rows: int, seconds: float) -> None:
        """Take in a measurement."""
        index = self._class_of(rows)
        if not self._rows[index]:
            self._rows[index], self._seconds[index] = rows, seconds
        else:
            former, mean_rows = float(self._present(index)), float(self._rows[index])
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

    def _present(self, classes: IntArray | int) -> FloatArray:
        """Return the means of classes, as they are at present."""
        drifts = self._drift - self._drifts[classes]
        means: FloatArray = self._seconds[classes]
        return np.maximum(means + drifts, 0.0) if self._linear else means * np.exp(drifts)

    def curve(self, most: int) -> FloatArray:
        """Return the seconds of 1 to `most` rows: float64 [most], never falling; 0 while nothing is known."""
        return self.times(np.arange(1.0, most + 1))

    def seconds(self, rows: int) -> float:
        """Return the seconds of this many rows, 1 or more; 0 while nothing is known."""
        return float(self.times(np.array([float(rows)]))[0])

    @staticmethod
    def _class_of(rows: int) -> int:
        return bisect_left(_BOUNDS, rows)

    def times(self, rows: FloatArray) -> FloatArray:
        """Return the seconds of these numbers of rows, 1 or more, float64 [n]; 0 while nothing is known."""
        known = np.flatnonzero(self._rows)
        if not len(known):
            return np.zeros(len(rows))
        counts, means = self._rows[known], self._present(known)
        # Noise is evened out: the time of more rows is not shorter.
        means = (np.maximum.accumulate(means) + np.minimum.accumulate(means[::-1])[::-1]) / 2
        if len(counts) == 1:
            lone: FloatArray = means[0] * (1 + _PRIOR_SHARE * rows) / (1 + _PRIOR_SHARE * counts[0])
            return lone
        slope = (means[-1] - means[-2]) / (counts[-1] - counts[-2])
        beyond = slope * np.maximum(rows - counts[-1], 0.0)
        if self._linear:
            straight: FloatArray = np.interp(rows, counts, means) + beyond
            return straight
        after = np.minimum(counts.searchsorted(rows), len(counts) - 1)
        before = np.maximum(counts.searchsorted(rows, side="right") - 1, 0)
        fewer = np.minimum(rows - counts[after], 0.0)
        slopes = np.append(np.diff(means) / np.diff(counts), means[-1] / counts[-1])
        steepest = np.minimum(means / counts, slopes)[after]
        least: FloatArray = np.maximum(means[before], means[after] + fewer * steepest) + beyond
        return least
