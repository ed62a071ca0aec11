"""How many rows a segment takes: pure rules over probabilities and costs."""

from __future__ import annotations

import numpy as np

from flowedge.core.arrays import FloatArray

_FADE = 0.95  # weight of what came before, at each observation
_PRIOR_GAIN = 2.0  # about what trees of a first answer have


def rows_worth(probabilities: FloatArray, row_cost: float) -> int:
    """How many rows, best first, are worth sending together.

    Sent with this segment rather than with the next, a row is there one interval earlier: it gains its
    probability times the interval. It delays what the rows before it reveal by what it adds to the crossing.
    So a row goes while

        p_i >= row_cost * (p_1 + .. + p_(i-1))

    and the first goes in any case.

    Args:
        probabilities: float64 [n], of acceptance, falling.
        row_cost: what a row adds to a crossing, as a share of the interval between segments.
    """
    before = np.cumsum(probabilities) - probabilities
    dear = np.flatnonzero(probabilities < row_cost * before)
    return int(dear[0]) if len(dear) else len(probabilities)


def lone_rows_pay(lone_share: float, gain: float) -> bool:
    """Whether segments of one row each reveal more tokens per time than wider ones.

    Tokens per time are the expected depth of the true path among the rows in flight over the time of a
    crossing. Wide segments multiply the one by `gain`; lone rows multiply the other by `lone_share`.
    """
    return lone_share * gain < 1


class RowsGain:
    """How much more the rows of wide segments reveal than as many lone rows as there are stages."""

    def __init__(self) -> None:
        self.gain = _PRIOR_GAIN

    def observe(self, probabilities: FloatArray, stages: int) -> None:
        """Take in the probabilities [n] of all nodes of a tree, its root's among them."""
        best = -np.sort(-probabilities)
        self.gain = _FADE * self.gain + (1 - _FADE) * float(best.sum() / best[:stages].sum())
