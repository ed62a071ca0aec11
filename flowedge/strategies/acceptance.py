"""How likely a proposed token is to be the one that is drawn, learnt from the tokens that are."""

from __future__ import annotations

import math

import numpy as np

from flowedge.sampling import FloatArray

# Bounds of the classes of proposals, by the drafter's probability of the token.
_BOUNDS = np.log(np.array([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9]))
_CENTRES = np.log(np.array([0.0005, 0.0017, 0.0055, 0.017, 0.055, 0.17, 0.42, 0.74, 0.96]))
_PRIOR = 20.0  # proposals of a class that the drafter's own word counts as
_LEAST = 1e-4  # of a probability, so that no class ever is beyond hope


class Acceptance:
    """The share of proposals that come true, by the drafter's log-probability.

    Proposals below a token of the true path are counted in classes of their log-probability. Each class starts
    with the drafter's own word, worth `prior` proposals. In between, the logarithm of the share is linear in
    the log-probability; it never falls as that rises.
    """

    def __init__(self, prior: float = _PRIOR) -> None:
        self._proposed: FloatArray = np.full(len(_CENTRES), prior)
        self._accepted: FloatArray = prior * np.exp(_CENTRES)
        self._log_share: FloatArray = _CENTRES.copy()

    def observe(self, log_probs: FloatArray, accepted: int | None) -> None:
        """Count the proposals [c] below one token, of which the one at index `accepted` was drawn, if any."""
        classes = np.digitize(log_probs, _BOUNDS)
        np.add.at(self._proposed, classes, 1.0)
        if accepted is not None:
            self._accepted[classes[accepted]] += 1.0
        share = np.clip(self._accepted / self._proposed, _LEAST, 1.0)
        self._log_share = np.log(np.maximum.accumulate(share))

    def log_share(self, log_probs: FloatArray) -> FloatArray:
        """Log of the probability that each proposal is drawn, given that its parent was: float64, same shape."""
        inside: FloatArray = np.interp(log_probs, _CENTRES, self._log_share)
        below = np.minimum(log_probs - _CENTRES[0], 0.0)
        above = np.maximum(log_probs - _CENTRES[-1], 0.0) / -_CENTRES[-1]  # 0 to 1 for certainty
        rest = math.log(0.5) if self._log_share[-1] > 0 else -float(self._log_share[-1])
        return inside + below + above * rest
