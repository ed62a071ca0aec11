"""What a crossing of the pipeline takes, and what a row adds to it, estimated as segments return."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.pipeline_trip import PipelineTrip

_FADE = 0.9  # weight of what came before, at each crossing
_LONE_FADE = 0.8
_COMPARABLE = 2  # crossings of several rows: one of many alone leaves open what rows cost
_APART = 0.9  # share of a crossing below which a lone row is no point of the line
# What rows are taken to cost until it is measured: this share of a crossing for so many of them.
_PRIOR_SHARE = 0.3
_PRIOR_ROWS = 64.0
_PRIOR_WEIGHT = 0.5  # crossings, that many rows from the mean, that the prior counts as
_LEAST_BASE = 0.1  # share of the mean crossing that one without rows takes at least


class TripEstimate:
    """A line through (rows, seconds) of crossings of an empty pipeline, the latest weighing most.

    Only of an empty pipeline: elsewhere the time has waiting in it, which the rows of other segments cause,
    and rows that were pruned on the way cost less than their number. The first chunk of the prompt comes
    first, with many rows; then the first segment of each round. So the estimate follows a stage or a link
    that changes in mid-request.

    A single row is a case apart: products with 4-bit weights can take much less time for it than the line
    says. It may be known from a profile before it is measured.
    """

    def __init__(self, lone_share: float = 0.0) -> None:
        """lone_share: time of a lone row over that of a crossing without rows; 0 where it is not known."""
        self._lone_share = lone_share
        self._lone_seconds = 0.0
        self._wide = 0
        self._moments = np.zeros((2, 2))  # of (1, rows)
        self._product = np.zeros(2)  # with seconds

    def observe(self, crossings: Sequence[PipelineTrip]) -> None:
        """Take in crossings, in the order in which they ended."""
        for crossing in crossings:
            if crossing.rows == 1:
                self._observe_lone(crossing.seconds)
                if self._wide < _COMPARABLE or (self.lone_share or 1.0) < _APART:
                    continue
            else:
                self._wide += 1
            point = np.array([1.0, crossing.rows])
            self._moments = _FADE * self._moments + np.outer(point, point)
            self._product = _FADE * self._product + point * crossing.seconds

    def _observe_lone(self, seconds: float) -> None:
        known = self._lone_seconds
        self._lone_seconds = _LONE_FADE * known + (1 - _LONE_FADE) * seconds if known else seconds

    @property
    def seconds(self) -> float:
        """Of a crossing without rows, as the line has it; 0 while nothing is known."""
        return self._line()[0]

    @property
    def row_share(self) -> float:
        """What each row adds, as a share of `seconds`; never below 0."""
        base, slope = self._line()
        return max(slope / base, 0.0) if base > 0 else _PRIOR_SHARE / _PRIOR_ROWS

    @property
    def lone_share(self) -> float | None:
        """Seconds of a lone row as a share of `seconds`: measured, the profile's, or 1 until it can be told.

        None while no lone row has been measured and no profile says.
        """
        if self._lone_seconds and self._wide >= _COMPARABLE:
            return self._lone_seconds / self.seconds
        return self._lone_share or (1.0 if self._lone_seconds else None)

    def less_rows(self, rows: int) -> float:
        """Seconds of such a crossing less what each row adds to `seconds`; 0 while nothing is known."""
        share = self.lone_share
        return self.seconds * share if rows == 1 and share is not None else self.seconds

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
