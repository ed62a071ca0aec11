"""How lookup is mixed with the distribution of models, and how its weight is learnt."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from flowedge.core.sampling import SamplingParams
from flowedge.drafting.lookup.matches import Match
from flowedge.models.host.copies import to_device

# The log-odds that the next token is a copy and not a model's prediction, by the length of the match: where
# one token has followed it, and where several have. They fit the bundled model's output at temperature 0, and
# with _PER_TEMPERATURE its output at 1.
_LENGTHS = (1, 2, 3, 4, 5, 8)  # the smallest length of each class
_SINGLE = (-1.8, -1.5, -0.1, 1.0, 1.0, 2.6)
_SEVERAL = (-3.6, -0.9, -1.4, -0.4, -0.2, 1.1)
_PER_TEMPERATURE = -2.2
_STEP = 0.6  # the largest step of the log-odds for one token


def first_odds(noise: SamplingParams | None) -> float:
    """The log-odds added to every class before anything is learnt; `noise` as in Drafter.open.

    They fall with the temperature, because a text repeats itself less when its tokens are drawn.
    """
    return 0.0 if noise is None else _PER_TEMPERATURE * min(noise.temperature, 1.0)


def copy_share(match: Match, odds: float) -> float:
    """The weight of a match beside the models; `odds` is added to the log-odds of the match's class."""
    if not match.candidates:
        return 0.0
    place = int(np.searchsorted(_LENGTHS, match.length, side="right")) - 1
    return _logistic((_SINGLE if match.distinct == 1 else _SEVERAL)[place] + odds)


def join_lookup(log_probs: torch.Tensor, matches: Sequence[Match], odds: float) -> torch.Tensor:
    """Return the log of w p + (1 - w P) q for the log-probabilities log q [f, vocab] and each row's match.

    w is `copy_share`, and p are the probabilities of the match's candidates, with the sum P.
    """
    left = np.zeros((len(matches), 1), dtype=np.float32)  # the log of 1 - w P
    rows: list[int] = []
    tokens: list[int] = []
    copied: list[float] = []
    for i, match in enumerate(matches):
        share = copy_share(match, odds)
        if share > 0:
            left[i] = math.log1p(-share * math.fsum(math.exp(value) for _, value in match.candidates))
            rows += [i] * len(match.candidates)
            tokens += [token for token, _ in match.candidates]
            copied += [value + math.log(share) for _, value in match.candidates]
    if not rows:
        return log_probs
    given = (np.array(rows), np.array(tokens), np.array(copied, dtype=np.float32), left)
    row, token, copy, remaining = to_device(log_probs.device, *given)
    result = log_probs + remaining
    # A match has each token once, so that no place is written twice.
    result[row, token] = torch.logaddexp(result[row, token], copy)
    return result


def learnt_odds(odds: float, match: Match, token: int, log_prob: float) -> float:
    """The odds after a drawn token: a step up the gradient of the token's joined log-probability.

    `log_prob` is the token's log-probability by the models.
    """
    share = copy_share(match, odds)
    if share == 0:
        return odds
    copied = {candidate: math.exp(value) for candidate, value in match.candidates}
    total, modelled, repeated = sum(copied.values()), math.exp(log_prob), copied.get(token, 0.0)
    likelihood = share * repeated + (1 - share * total) * modelled
    if likelihood == 0:
        return odds
    return odds + _STEP * share * (1 - share) * (repeated - total * modelled) / likelihood


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -30 else 0.0
