"""The sessions that decode over one pipeline at the same time, and what they would send."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import FloatArray
from flowedge.core.request import Priority
from flowedge.strategies.auto.speed import Speed

# By how much a token of a request counts, beside one of a request with the default priority.
PRIORITY_WEIGHTS: Mapping[Priority, float] = {"interactive": 2.0, "normal": 1.0, "batch": 0.5}
_LEAST_SHARE = 0.5  # of an equal share of the rows of a batch, which a session may always send


@dataclass(eq=False)
class RowDemand:
    """What one session would send.

    Attributes:
        probabilities: float64 [n], of the likeliest nodes of its tree, falling, the root's 1 first.
        speed: of the session.
        weight: by which its tokens count more, or less, than those of other sessions.
    """

    probabilities: FloatArray
    speed: Speed
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Share:
    """One session's share of the rows of a batch.

    Attributes:
        rows: of the session; others: of all other sessions.
        least: rows that the session may send however unlikely they are.
    """

    rows: int
    others: int
    least: int

    def thresholds(self, of_plan: FloatArray, in_flight: int) -> FloatArray:
        """Return the least probabilities at which rows are worth a place in a batch: float64 [n].

        Args:
            of_plan: float64 [n], of the rows behind those of the other sessions.
            in_flight: segments of the session.
        """
        thresholds: FloatArray = of_plan.copy()
        thresholds[: self.least] = 0.0
        if not in_flight:
            thresholds[0] = 0.0  # a session goes on, however much a row costs
        return thresholds


class PipelineLoad:
    """The sessions that are open, and the demands of those that decode at present.

    Rows of all sessions compete for a place in a batch by their probability, times the session's weight.
    """

    def __init__(self) -> None:
        self._demands: list[RowDemand] = []
        self._open: set[RowDemand] = set()

    @property
    def alone(self) -> bool:
        """Whether no two sessions are open: nothing but a session's own segments holds up a segment."""
        return len(self._open) <= 1

    @property
    def shared(self) -> bool:
        """Whether more than one session decodes."""
        return len(self._demands) > 1

    @property
    def sessions(self) -> int:
        return len(self._demands)

    @property
    def tokens_per_s(self) -> float:
        """The speed of all sessions together."""
        return sum(demand.speed.tokens_per_s for demand in self._demands)

    def open(self, demand: RowDemand) -> None:
        """Take in a session whose prompt is on its way."""
        self._open.add(demand)

    def join(self, demand: RowDemand) -> None:
        """Take in a session that begins to decode."""
        self._demands.append(demand)

    def leave(self, demand: RowDemand) -> None:
        """Forget a session that has ended, however far it had come."""
        self._open.discard(demand)
        self._demands = [other for other in self._demands if other is not demand]

    def probabilities(self) -> FloatArray:
        """Return the weighted probabilities of the likeliest nodes of all sessions: float64 [n], falling."""
        if not self.shared:
            return self._demands[0].probabilities
        merged: FloatArray = -np.sort(-np.concatenate(self._weighted(self._demands)))
        return merged

    def share_of(self, demand: RowDemand, likeliest: FloatArray, rows: int, segments: int) -> Share:
        """Return a session's share of a batch of `rows` rows, of which `segments` are in flight.

        No session that has rows gets less than half an equal share, by weight.

        Args:
            likeliest: as `probabilities` returns them.
        """
        if not self.shared:
            return Share(rows, 0, 0)
        last = likeliest[: rows * segments][-1]
        (own,) = self._weighted([demand])
        wanted = math.ceil(int((own >= last).sum()) / segments)
        weights = sum(other.weight for other in self._demands)
        least = math.ceil(_LEAST_SHARE * rows * demand.weight / weights)
        own_rows = max(min(wanted, rows), least, 1)
        return Share(own_rows, max(rows - own_rows, 0), least)

    def _weighted(self, demands: Sequence[RowDemand]) -> list[FloatArray]:
        mean = sum(demand.weight for demand in self._demands) / len(self._demands)
        return [demand.probabilities * (demand.weight / mean) for demand in demands]
