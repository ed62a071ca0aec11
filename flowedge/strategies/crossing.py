"""What a crossing of the pipeline takes, and what a row adds to it, estimated as segments return."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.strategies.base import Crossing

_FADE = 0.95  # weight of what came before, at each crossing
# What rows are taken to cost until it is measured: this share of a crossing for so many of them.
_PRIOR_SHARE = 0.3
_PRIOR_ROWS = 64.0
_PRIOR_WEIGHT = 0.5  # crossings, that many rows from the mean, that the prior counts as
_LEAST_BASE = 0.1  # share of the mean crossing that one without rows takes at least


class CrossingEstimate:
    """A line through (rows, seconds) of the crossings so far, the latest weighing most.

    Chunks of the prompt come first, with many rows; segments of the draft tree follow. Time spent queueing is
    part of a crossing. So the estimate follows a stage or a link that changes in mid-request.
    """

    def __init__(self) -> None:
        self._moments = np.zeros((2, 2))  # of (1, rows)
        self._product = np.zeros(2)  # with seconds

    def observe(self, crossings: Sequence[Crossing]) -> None:
        """Take in crossings, in the order in which they ended."""
        for crossing in crossings:
            point = np.array([1.0, crossing.rows])
            self._moments = _FADE * self._moments + np.outer(point, point)
            self._product = _FADE * self._product + point * crossing.seconds

    @property
    def seconds(self) -> float:
        """Of a crossing without rows; 0 while nothing is known."""
        return self._line()[0]

    @property
    def row_share(self) -> float:
        """What each row adds, as a share of `seconds`; never below 0."""
        base, slope = self._line()
        return max(slope / base, 0.0) if base > 0 else _PRIOR_SHARE / _PRIOR_ROWS

    def _line(self) -> tuple[float, float]:
        """Least squares, with a slope drawn to the prior's, so that one row count gives a line too."""
        weight = float(self._moments[0, 0])
        if weight == 0:
            return 0.0, 0.0
        rows, seconds = float(self._moments[0, 1]) / weight, float(self._product[0]) / weight
        share = _PRIOR_SHARE / _PRIOR_ROWS
        prior_slope = seconds * share / (1 + share * rows)
        pull = _PRIOR_WEIGHT * _PRIOR_ROWS**2
        variance = max(float(self._moments[1, 1]) - weight * rows**2, 0.0)
        covariance = float(self._product[1]) - weight * rows * seconds
        slope = (covariance + pull * prior_slope) / (variance + pull)
        return max(seconds - slope * rows, _LEAST_BASE * seconds), slope
