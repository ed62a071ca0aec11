"""Distributions of several drafters as one: what models take to follow, and what followed before."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from flowedge.core.sampling import SamplingParams
from flowedge.drafting.ngram import Match
from flowedge.drafting.prediction import Prediction

# Log-odds that what follows is a copy and not what a model foresees, by the length of the match: for one
# token that has followed it, and for several. They fit the bundled model's output at temperature 0, and with
# _PER_TEMPERATURE that at 1.
_LENGTHS = (1, 2, 3, 4, 5, 8)  # the least of each class
_SINGLE = (-1.8, -1.5, -0.1, 1.0, 1.0, 2.6)
_SEVERAL = (-3.6, -0.9, -1.4, -0.4, -0.2, 1.1)
_PER_TEMPERATURE = -2.2
_STEP = 0.6  # of the log-odds, for a token that was a copy against all odds
_FLOOR = -100.0  # log-probability of tokens that a model cannot propose
_FIRST_WEIGHT = 0.6  # of the first of several models; the others share the rest


def pooled(predictions: Sequence[Prediction], vocab: int) -> torch.Tensor:
    """The normalised weighted geometric mean of what models predict: log-probabilities [f, vocab]."""
    if len(predictions) == 1:
        return torch.log_softmax(_over_target(predictions[0], vocab), dim=-1)
    others = (1 - _FIRST_WEIGHT) / (len(predictions) - 1)
    total = torch.zeros(())
    for i, prediction in enumerate(predictions):
        log_probs = torch.log_softmax(_over_target(prediction, vocab), dim=-1)
        total = total + (_FIRST_WEIGHT if i == 0 else others) * log_probs
    return torch.log_softmax(total, dim=-1)


def first_odds(noise: SamplingParams | None) -> float:
    """What is added to the log-odds of every class while nothing is learnt; `noise` as in Drafter.open.

    Where tokens are drawn at a temperature, a text repeats itself the less.
    """
    return 0.0 if noise is None else _PER_TEMPERATURE * min(noise.temperature, 1.0)


def copy_share(match: Match, odds: float) -> float:
    """The weight of a match beside models: `odds` is what the session adds to the log-odds of its class."""
    if not match.candidates:
        return 0.0
    place = int(np.searchsorted(_LENGTHS, match.length, side="right")) - 1
    return _logistic((_SINGLE if match.distinct == 1 else _SEVERAL)[place] + odds)


def mixed(log_probs: torch.Tensor, matches: Sequence[Match], odds: float) -> torch.Tensor:
    """w p + (1 - w P) q for each row of models' log-probabilities [f, vocab] and its match.

    w is copy_share; p, of the match's candidates, adds up to P. What is missing to 1 is left to the models.
    """
    result = log_probs.clone()
    for i, match in enumerate(matches):
        share = copy_share(match, odds)
        if share > 0:
            tokens, copied = _candidates(match)
            result[i] += math.log1p(-share * math.exp(float(copied.logsumexp(0))))
            result[i, tokens] = torch.logaddexp(result[i, tokens], copied + math.log(share))
    return result


def learnt_odds(odds: float, match: Match, token: int, log_prob: float) -> float:
    """`odds` after a token that was drawn: a step up the gradient of its log-probability in the mixture.

    log_prob: of the token, by the models.
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


def _candidates(match: Match) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, log_probs = zip(*match.candidates, strict=True)
    return torch.tensor(tokens), torch.tensor(log_probs, dtype=torch.float32)


def _over_target(prediction: Prediction, vocab: int) -> torch.Tensor:
    """The logits in float32, of all tokens of the target: [f, vocab]."""
    logits = prediction.logits.float()
    if prediction.ids is None:
        return logits[:, :vocab]
    full = torch.full((len(logits), vocab), _FLOOR)
    full[:, torch.from_numpy(prediction.ids)] = torch.log_softmax(logits, dim=-1)
    return full


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -30 else 0.0
