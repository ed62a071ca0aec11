"""How likely a proposed token is to be the one that is drawn, learnt from the tokens that are."""

from __future__ import annotations

import numpy as np

from flowedge.sampling import FloatArray, IntArray

# Classes of proposals, by the drafter's probability of the token: their bounds, and what stands for each.
_BOUNDS = np.log(np.array([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9]))
_CENTRES = np.log(np.array([0.0005, 0.0017, 0.0055, 0.017, 0.055, 0.17, 0.42, 0.74, 0.96]))
_CLASSES = len(_CENTRES) + 1  # and one for what a drafter does not propose
_LEAST = 1e-4  # share of a class, so that none ever is beyond hope
_PAIR_PRIOR = 2.0  # drawn tokens that the noisy-or of two drafters counts as


class Acceptance:
    """The share of proposals that come true, by what each of the joined drafters says of them.

    Proposals below a token of the true path are counted in classes of their log-probability, drafter by
    drafter, the likeliest of a node apart from the others: it comes true more often than another token of the
    same probability. Each class starts with the drafter's own word, worth `prior` proposals. In between, the
    logarithm of the share is linear in the log-probability; it never falls as that rises.

    Of several drafters a token is drawn unless each of them is wrong, which would be the product if they were
    independent; how far that is off is learnt for each combination of classes. What the proposals below one
    node have in sum is at most 1.
    """

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._drafters: list[_Shares] = []
        self._drawn: FloatArray = np.zeros(0)  # by combination of classes
        self._expected: FloatArray = np.zeros(0)

    def observe(self, log_probs: FloatArray, accepted: int | None) -> None:
        """Count the proposals [c, k] of k drafters below one token; the one at index `accepted` was drawn."""
        shares = self._independent(log_probs)
        combinations = self._combinations(log_probs)
        np.add.at(self._expected, combinations, shares)
        if accepted is not None:
            self._drawn[combinations[accepted]] += 1.0
        for k, drafter in enumerate(self._drafters):
            drafter.observe(log_probs[:, k], accepted)

    def log_share(self, log_probs: FloatArray) -> FloatArray:
        """Log of the probability that each proposal is drawn, if its parent was.

        Args:
            log_probs: float64 [f, c, k], of k drafters, -inf where one does not propose the token.

        Returns:
            float64 [f, c].
        """
        shares = self._independent(log_probs)
        if len(self._drafters) > 1:
            combinations = self._combinations(log_probs)
            drawn, expected = self._drawn[combinations], self._expected[combinations]
            shares = shares * (drawn + _PAIR_PRIOR) / (expected + _PAIR_PRIOR)
            shares = shares / np.maximum(shares.sum(axis=-1, keepdims=True), 1.0)
        logs: FloatArray = np.log(np.maximum(shares, np.finfo(np.float64).tiny))
        return logs

    def _independent(self, log_probs: FloatArray) -> FloatArray:
        """The probability of each proposal [..., k] if the drafters were independent: float64 [...]."""
        while len(self._drafters) < log_probs.shape[-1]:
            self._drafters.append(_Shares(self._prior))
            cells = _CLASSES ** len(self._drafters)
            self._drawn, self._expected = np.zeros(cells), np.zeros(cells)
        wrong = np.ones(log_probs.shape[:-1])
        for k, drafter in enumerate(self._drafters):
            wrong = wrong * (1 - drafter.share(log_probs[..., k]))
        independent: FloatArray = 1 - wrong
        return independent

    def _combinations(self, log_probs: FloatArray) -> IntArray:
        combined: IntArray = np.zeros(log_probs.shape[:-1], dtype=np.int64)
        for k in range(log_probs.shape[-1]):
            classes = np.where(np.isfinite(log_probs[..., k]), np.digitize(log_probs[..., k], _BOUNDS) + 1, 0)
            combined = combined * _CLASSES + classes
        return combined


class _Shares:
    """The shares of one drafter: of the likeliest proposals of their nodes, and of the others."""

    def __init__(self, prior: float) -> None:
        self._likeliest = _Curve(prior)
        self._others = _Curve(prior)

    def observe(self, log_probs: FloatArray, accepted: int | None) -> None:
        """Count the proposals [c] below one token; -inf is none."""
        if not len(log_probs):
            return
        first = int(np.argmax(log_probs))
        is_first = np.arange(len(log_probs)) == first
        for curve, mine in ((self._likeliest, is_first), (self._others, ~is_first)):
            proposed = mine & np.isfinite(log_probs)
            drawn = accepted is not None and bool(proposed[accepted])
            curve.observe(log_probs[proposed], float(log_probs[accepted]) if drawn else None)

    def share(self, log_probs: FloatArray) -> FloatArray:
        """Of each proposal [..., c]; 0 for -inf."""
        shares = self._others.share(log_probs)
        if log_probs.shape[-1]:
            first = np.argmax(log_probs, axis=-1, keepdims=True)
            likeliest = self._likeliest.share(np.take_along_axis(log_probs, first, axis=-1))
            np.put_along_axis(shares, first, likeliest, axis=-1)
        return shares


class _Curve:
    """Shares by log-probability."""

    def __init__(self, prior: float) -> None:
        self._proposed: FloatArray = np.full(len(_CENTRES), prior)
        self._accepted: FloatArray = prior * np.exp(_CENTRES)
        self._log_share: FloatArray = _CENTRES.copy()

    def observe(self, proposed: FloatArray, accepted: float | None) -> None:
        np.add.at(self._proposed, np.digitize(proposed, _BOUNDS), 1.0)
        if accepted is not None:
            self._accepted[np.digitize(accepted, _BOUNDS)] += 1.0
        share = np.clip(self._accepted / self._proposed, _LEAST, 1.0)
        self._log_share = np.log(np.maximum.accumulate(share))

    def share(self, log_probs: FloatArray) -> FloatArray:
        known = np.append(self._log_share, 0.0)  # certainty is certain
        share: FloatArray = np.interp(log_probs, np.append(_CENTRES, 0.0), known)
        below = np.minimum(log_probs - _CENTRES[0], 0.0)
        shares: FloatArray = np.exp(share + below)
        return shares
