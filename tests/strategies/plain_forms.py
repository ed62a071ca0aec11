"""The plain forms, over arrays, of what `auto` works out with few calls."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from flowedge.core.arrays import FloatArray
from flowedge.strategies.auto.acceptance import _BOUNDS as PROBABILITY_BOUNDS
from flowedge.strategies.auto.acceptance import _CENTRES, _LEAST, _TINY
from flowedge.strategies.auto.row_times import _BOUNDS as ROW_BOUNDS
from flowedge.strategies.auto.row_times import _FADE, _IN_A_ROW, _LEAST_S, _NOISE, _PRIOR_SHARE

COUNTS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128])


def plain_nodes_of_forward(
    probabilities: FloatArray,
    forward_s: FloatArray,
    slack_s: float,
    hit: float,
    tokens_per_s: float,
    rows: int,
) -> tuple[int, float]:
    """nodes_of_forward in objective.py."""
    counts = np.append(COUNTS[len(probabilities) > COUNTS], len(probabilities))
    seconds = np.maximum(forward_s[counts - 1], 1e-9)
    tokens = hit * np.cumsum(probabilities)[np.minimum(counts, rows) - 1]
    values = tokens - tokens_per_s * np.maximum(seconds - slack_s, 0.0)
    best = int(np.argmax(values / seconds))
    return int(counts[best]), float(tokens[best])


class PlainRowTimes:
    """RowTimes, evaluated anew whenever it is asked."""

    def __init__(self, *, linear: bool) -> None:
        size = len(ROW_BOUNDS) + 1
        self._linear = linear
        self._rows, self._seconds = np.zeros(size), np.zeros(size)
        self._off: list[tuple[int, int, float, float]] = []  # class, rows, seconds and by how much it was off
        self._before = self._rows, self._seconds

    def observe(self, rows: int, seconds: float) -> None:
        index, neutral = bisect_left(ROW_BOUNDS, rows), 0.0 if self._linear else 1.0
        if not self._rows[index]:
            self._rows[index], self._seconds[index] = rows, seconds
            return
        counts, means = self._before if self._off else (self._rows, self._seconds)
        off = neutral
        if counts[index]:
            expected = float(np.clip(seconds, *sorted([means[index], means[index] * (rows / counts[index])])))
            if self._linear and abs(seconds - expected) > _NOISE * expected:
                off = seconds - expected
            elif expected >= _LEAST_S and abs(seconds - expected) > _NOISE * expected:
                off = seconds / expected
        if off == neutral:
            self._off = []
        elif not self._off or (off > neutral) != (self._off[0][3] > neutral):
            self._off = [(index, rows, seconds, off)]
            self._before = self._rows.copy(), self._seconds.copy()
        else:
            self._off.append((index, rows, seconds, off))
        taken = [(index, rows, seconds, off)]
        if len(self._off) == _IN_A_ROW:
            counts, means = self._before
            change = min((each[3] for each in self._off), key=lambda each: abs(each - neutral))
            changed = np.maximum(means + change if self._linear else means * change, 0.0)
            self._rows = np.where(counts > 0, counts, self._rows)
            self._seconds = np.where(counts > 0, changed, self._seconds)
            taken, self._off = self._off, []
        for number, count, measured, _ in taken:
            self._rows[number] = _FADE * self._rows[number] + (1 - _FADE) * count
            self._seconds[number] = _FADE * self._seconds[number] + (1 - _FADE) * measured

    def times(self, rows: FloatArray) -> FloatArray:
        known = np.flatnonzero(self._rows)
        counts, means = self._rows[known], self._seconds[known]
        means = (np.maximum.accumulate(means) + np.minimum.accumulate(means[::-1])[::-1]) / 2
        if len(counts) == 1:
            return means[0] * (1 + _PRIOR_SHARE * rows) / (1 + _PRIOR_SHARE * counts[0])
        slope = (means[-1] - means[-2]) / (counts[-1] - counts[-2])
        beyond = slope * np.maximum(rows - counts[-1], 0.0)
        if self._linear:
            return np.interp(rows, counts, means) + beyond
        after = np.minimum(counts.searchsorted(rows), len(counts) - 1)
        before = np.maximum(counts.searchsorted(rows, side="right") - 1, 0)
        fewer = np.minimum(rows - counts[after], 0.0)
        slopes = np.append(np.diff(means) / np.diff(counts), means[-1] / counts[-1])
        steepest = np.minimum(means / counts, slopes)[after]
        return np.maximum(means[before], means[after] + fewer * steepest) + beyond


class PlainAcceptance:
    """ProposalAcceptance, whose shares are worked out with every token drawn."""

    def __init__(self, prior: float) -> None:
        self._proposed = np.full((2, len(_CENTRES)), prior)  # of the likeliest proposals, and of the others
        self._accepted = np.stack([prior * np.exp(_CENTRES)] * 2)
        self._log_shares = [np.append(_CENTRES, 0.0) for _ in range(2)]

    def observe(self, log_probs: list[float], accepted: int | None) -> None:
        for index, log_prob in enumerate(log_probs):
            kind, of_class = min(index, 1), bisect_right(PROBABILITY_BOUNDS, log_prob)
            self._proposed[kind, of_class] += 1.0
            self._accepted[kind, of_class] += index == accepted
        shares = np.minimum(np.maximum(self._accepted / self._proposed, _LEAST), 1.0)
        rising = np.log(np.maximum.accumulate(shares, axis=1))
        self._log_shares = [np.append(of_kind, 0.0) for of_kind in rising]

    def log_share(self, log_probs: FloatArray) -> FloatArray:
        first, others = (self._share(log_probs, of_kind) for of_kind in self._log_shares)
        others[:, 0] = first[:, 0]
        return np.log(np.maximum(others, _TINY))

    @staticmethod
    def _share(log_probs: FloatArray, log_share: FloatArray) -> FloatArray:
        share = np.interp(log_probs, np.append(_CENTRES, 0.0), log_share)
        return np.exp(share + np.minimum(log_probs - _CENTRES[0], 0.0))
