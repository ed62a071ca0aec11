"""Estimates of the time of a trip through the pipeline and of the time that a row adds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.protocol.pipeline_ledger import PipelineTrip

_FADE = 0.9  # weight of the former estimate at each trip
_SINGLE_ROW_FADE = 0.8
# Trips of several rows before single rows are compared: one trip leaves the cost of a row open.
_COMPARABLE = 2
_APART = 0.9  # share of a trip below which a single row is no point of the line
# The assumed cost of rows before it is measured: this share of a trip for this number of rows.
_PRIOR_SHARE = 0.3
_PRIOR_ROWS = 64.0
_PRIOR_WEIGHT = 0.5  # the prior counts as this many trips, _PRIOR_ROWS from the mean
_LEAST_BASE = 0.1  # least time of a trip without rows, as a share of the mean trip


class TripEstimate:
    """A line through (rows, seconds) of trips through an empty pipeline, the latest weighing most.

    Other trips do not count: their time contains waiting for the rows of other segments, and rows that were
    pruned on the way cost less than their number. The first chunk of the prompt comes first, with many rows;
    then the first segment of each round. So the estimate follows a stage or a link that changes in
    mid-request.

    A single row is estimated apart: products with 4-bit weights can be much faster for one row than the line
    says. Its time may be known from a profile before it is measured.
    """

    def __init__(self, single_row_share: float = 0.0) -> None:
        """`single_row_share` is the property's value from a profile, 0 where there is none."""
        self._profile_share = single_row_share
        self._single_row_seconds = 0.0
        self._wide_trips = 0
        self._moments = np.zeros((2, 2))  # of (1, rows)
        self._product = np.zeros(2)  # of (1, rows) with seconds

    def observe(self, trips: Sequence[PipelineTrip]) -> None:
        """Take in trips through an empty pipeline, in the order of their return."""
        for trip in trips:
            if trip.rows == 1:
                self._observe_single_row(trip.seconds)
                if self._wide_trips < _COMPARABLE or (self.single_row_share or 1.0) < _APART:
                    continue
            else:
                self._wide_trips += 1
            point = np.array([1.0, trip.rows])
            self._moments = _FADE * self._moments + np.outer(point, point)
            self._product = _FADE * self._product + point * trip.seconds

    def _observe_single_row(self, seconds: float) -> None:
        known = self._single_row_seconds
        new = _SINGLE_ROW_FADE * known + (1 - _SINGLE_ROW_FADE) * seconds if known else seconds
        self._single_row_seconds = new

    @property
    def seconds(self) -> float:
        """Time of a trip without rows, by the line; 0 while nothing is known."""
        return self._line()[0]

    @property
    def row_share(self) -> float:
        """Time that each row adds, as a share of `seconds`; never below 0."""
        base, slope = self._line()
        return max(slope / base, 0.0) if base > 0 else _PRIOR_SHARE / _PRIOR_ROWS

    @property
    def single_row_share(self) -> float | None:
        """Time of a trip of a single row as a share of `seconds`.

        The value is measured, or the profile's, or 1 while too few trips are known to compare. It is None
        while neither a measurement nor a profile exists.
        """
        if self._single_row_seconds and self._wide_trips >= _COMPARABLE:
            return self._single_row_seconds / self.seconds
        return self._profile_share or (1.0 if self._single_row_seconds else None)

    def base_seconds(self, rows: int) -> float:
        """Return the time of a trip of this many rows without the time that each row adds; 0 if unknown."""
        share = self.single_row_share
        return self.seconds * share if rows == 1 and share is not None else self.seconds

    def _line(self) -> tuple[float, float]:
        """Return base and slope by least squares; a prior slope makes a single row count give a line too."""
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
