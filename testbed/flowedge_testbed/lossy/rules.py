"""The rules by which SpecPipe's lossy verification takes a token (specpipe, section 3.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Candidates:
    """The tokens that the draft tree has below its root.

    Attributes:
        tokens: int64 [n]; log_probs: float64 [n], by the drafter.
    """

    tokens: IntArray
    log_probs: FloatArray


Rule: TypeAlias = Callable[[FloatArray, Candidates], int]
"""Returns the token after a row, from the target's probabilities [vocab] and the candidates, one or more."""


def lossless(probabilities: FloatArray, candidates: Candidates) -> int:  # noqa: ARG001 (a Rule)
    """Return the target's own token."""
    return int(np.argmax(probabilities))


def relaxed(probabilities: FloatArray, candidates: Candidates) -> int:
    """Return the candidate with the highest probability under the target, so that every level hits."""
    return int(candidates.tokens[np.argmax(probabilities[candidates.tokens])])


def strict(top_p: float) -> Rule:
    """Return the rule that takes a candidate of the target's top-p set.

    Of several it takes the candidate that the drafter finds likeliest, and without one the target's own
    token. For the probabilities 0.5, 0.3 and 0.2 and top_p = 0.7 the set is the first two tokens.
    """

    def choose(probabilities: FloatArray, candidates: Candidates) -> int:
        order = np.argsort(-probabilities, kind="stable")
        before = np.cumsum(probabilities[order]) - probabilities[order]
        accepted = np.isin(candidates.tokens, order[before < top_p])
        if not accepted.any():
            return lossless(probabilities, candidates)
        return int(candidates.tokens[np.argmax(np.where(accepted, candidates.log_probs, -np.inf))])

    return choose
