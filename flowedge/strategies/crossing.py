"""What a crossing of the pipeline takes, and what a row adds to it, estimated as segments return."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.strategies.base import Crossing

_FADE = 0.95  # weight of what came before, at each crossing
_PRIOR_ROWS = 64.0  # row count of the crossing that the first estimate of a row's time is a guess from
_PRIOR_SHARE = 0.3  # by how much that many rows are taken to prolong a crossing until it is measured
_PRIOR_WEIGHT = 0.5


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
        if self._moments[0, 0] == 0:
            return 0.0, 0.0
        mean = float(self._product[0] / self._moments[0, 0])
        # A crossing as the prior has it stands beside those measured, so that one row count gives a line too.
        point = np.array([1.0, _PRIOR_ROWS])
        guess = mean * (1 + _PRIOR_SHARE)
        moments = self._moments + _PRIOR_WEIGHT * np.outer(point, point)
        base, slope = np.linalg.solve(moments, self._product + _PRIOR_WEIGHT * point * guess)
        if base <= 0:
            return mean, 0.0
        return float(base), float(slope)
