"""The log-probabilities that the model gives the tokens of an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenLikelihood:
    """How likely a token was, by the model alone: before biases, penalties, grammar and temperature.

    Attributes:
        logprob: natural logarithm of its probability.
        likeliest: the likeliest tokens in its place with theirs, the likeliest first.
    """

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()
