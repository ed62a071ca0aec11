"""The probability that a proposed token is drawn, learnt from the tokens that are drawn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import FloatArray

# Classes of proposals by the drafter's probability of the token: the bounds and the centre of each class.
_BOUNDS = np.log(np.array([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9])).tolist()
_CENTRES = np.log(np.array([0.0005, 0.0017, 0.0055, 0.017, 0.055, 0.17, 0.42, 0.74, 0.96]))
_POINTS = np.append(_CENTRES, 0.0)
_LEAST = 1e-4  # least share of a class, so that no proposal is excluded for good
_TINY = np.finfo(np.float64).tiny


class ProposalAcceptance:
    """The share of proposals that are drawn, by the drafter's probability of the proposal.

    Proposals below a token of the true path are counted in classes of their log-probability. The likeliest
    proposal of a node is counted apart, because it is drawn more often than another proposal of the same
    probability. Each class starts with the drafter's own probability, which counts as `prior` proposals.
    Between the classes the logarithm of the share is linear in the log-probability, and it never falls as
    that rises.
    """

    def __init__(self, prior: float) -> None:
        self._likeliest = _ShareCurve(prior)
        self._others = _ShareCurve(prior)

    def observe(self, log_probs: Sequence[float], accepted: int | None) -> None:
        """Count the proposals below a token, likeliest first.

        `accepted` is the index of the drawn proposal, if any.
        """
        self._likeliest.observe(log_probs[:1], accepted if accepted == 0 else None)
        self._others.observe(log_probs[1:], accepted - 1 if accepted else None)

    def log_share(self, log_probs: FloatArray) -> FloatArray:
        """Return the log-probability that each proposal is drawn after its parent.

        Args:
            log_probs: float64 [f, c], likeliest first, -inf where there is no proposal.

        Returns:
            float64 [f, c].
        """
        shares = self._others.share(log_probs)
        if log_probs.shape[1]:
            shares[:, 0] = self._likeliest.share(log_probs[:, 0])
        logs: FloatArray = np.log(np.maximum(shares, _TINY))
        return logs


class _ShareCurve:
    """The share of drawn proposals as a function of their log-probability."""

    def __init__(self, prior: float) -> None:
        self._proposed = [prior] * len(_CENTRES)
        self._accepted: list[float] = (prior * np.exp(_CENTRES)).tolist()
        self._log_share: FloatArray | None = np.append(_CENTRES, 0.0)  # until a proposal is counted

    def observe(self, proposed: Sequence[float], accepted: int | None) -> None:
        """Count proposals by their log-probabilities; `accepted` is the index of the drawn one, if any."""
        for log_prob in proposed:
            self._proposed[bisect_right(_BOUNDS, log_prob)] += 1.0
        if accepted is not None:
            self._accepted[bisect_right(_BOUNDS, proposed[accepted])] += 1.0
        self._log_share = None

    def share(self, log_probs: FloatArray) -> FloatArray:
        if self._log_share is None:
            counted = np.array(self._accepted) / np.array(self._proposed)
            bounded = np.minimum(np.maximum(counted, _LEAST), 1.0)
            rising = np.log(np.maximum.accumulate(bounded))
            self._log_share = np.append(rising, 0.0)  # probability 1 has share 1
        share: FloatArray = np.interp(log_probs, _POINTS, self._log_share)
        share += np.minimum(log_probs - _CENTRES[0], 0.0)
        shares: FloatArray = np.exp(share, out=share)
        return shares
