"""The number of rows of a segment: pure rules over probabilities and costs."""

from __future__ import annotations

import numpy as np

from flowedge.core.arrays import FloatArray

_FADE = 0.95  # weight of the former estimate at each observation
_PRIOR_GAIN = 2.0  # about the gain of a request's first trees


def rows_worth(probabilities: FloatArray, row_cost: float) -> int:
    """Return how many rows, best first, are worth sending in one segment.

    A row that goes with this segment instead of the next returns one interval earlier: it gains its
    probability times the interval. It delays the tokens of the rows before it by the time that it adds to the
    round trip. So a row goes while

        p_i >= row_cost * (p_1 + .. + p_(i-1))

    and the first row always goes.

    Args:
        probabilities: float64 [n], of acceptance, falling.
        row_cost: time that a row adds to a round trip, as a share of the interval between segments.
    """
    before = np.cumsum(probabilities) - probabilities
    too_costly = np.flatnonzero(probabilities < row_cost * before)
    return int(too_costly[0]) if len(too_costly) else len(probabilities)


def single_rows_pay(single_row_share: float, gain: float) -> bool:
    """Return whether segments of a single row give more tokens per time than wide segments.

    Tokens per time are the expected depth of the true path among the rows in flight, divided by the time of a
    round trip. Wide segments multiply the depth by `gain`; single rows multiply the time by
    `single_row_share`.
    """
    return single_row_share * gain < 1


class WideSegmentGain:
    """Expected depth in the rows of wide segments, relative to as many single rows as there are stages."""

    def __init__(self) -> None:
        self.gain = _PRIOR_GAIN

    def observe(self, probabilities: FloatArray, stages: int) -> None:
        """Take in a tree; `probabilities` [n] are those of all its nodes, the root included."""
        best = -np.sort(-probabilities)
        self.gain = _FADE * self.gain + (1 - _FADE) * float(best.sum() / best[:stages].sum())
