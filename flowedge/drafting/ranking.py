"""From logits to the children of nodes: the likeliest tokens, or those that the target will draw.

A target draws argmax(log p / T + g), and its noise g is known before the draw: it depends on the seed, the
position and the token alone (rule R1). A drafter that ranks tokens by log q + T g, with the same filter,
proposes what the target will draw if q is near p; ranked by log q, what the target draws most often.
What is drawn is the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from flowedge.drafting.drafter import DraftLayer, padded_layer
from flowedge.sampling import IntArray, SamplingParams, gumbel_noise_of

CANDIDATES = 256  # likeliest tokens of a node that the noise is computed for, at least
_NO_TOKENS = torch.zeros((1, 0), dtype=torch.int64)

TokenIds = Callable[[IntArray], IntArray]


def likeliest(logits: torch.Tensor, width: int) -> DraftLayer:
    """The `width` likeliest tokens of each row of logits [f, vocab], with their log-probabilities."""
    log_probs = torch.log_softmax(logits, dim=-1)
    best = torch.topk(log_probs, min(width, log_probs.shape[-1]), dim=-1)
    return DraftLayer(tokens=best.indices.cpu().numpy(), log_probs=best.values.double().cpu().numpy())


def best_drawn(
    logits: torch.Tensor,
    width: int,
    noise: SamplingParams,
    positions: Sequence[int],
    token_ids: TokenIds | None = None,
) -> DraftLayer:
    """The `width` tokens of each row that the target is likeliest to draw, given the noise of its draws.

    The score of a token is log_softmax(log q + T g) over the likeliest tokens of the row, T the temperature:
    were the target's logits the drafter's plus independent Gumbel errors of scale 1, it would be the log
    of the probability that the token is drawn.

    Args:
        logits: [f, vocab] of the drafter.
        noise: of the request; its top-k and top-p filters leave tokens out here as they do in the target.
        positions: f absolute positions, of the tokens that are drawn after each row.
        token_ids: the target's ids of columns of the logits; None where they are the same.

    Returns:
        Columns, not ids, as `likeliest` does; a row with fewer than `width` ends in NO_TOKEN.
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    count = min(max(CANDIDATES, 4 * width), log_probs.shape[-1])
    best = torch.topk(log_probs, count, dim=-1)
    values, columns = best.values.double().cpu(), best.indices.cpu().numpy()
    allowed = _allowed(values, noise)
    children: list[list[tuple[int, float]]] = []
    for row, position in enumerate(positions):
        tokens = columns[row][allowed[row]]
        ids = tokens if token_ids is None else token_ids(tokens)
        drawn = values[row].numpy()[allowed[row]]
        drawn = drawn + noise.temperature * gumbel_noise_of(noise.seed, position, ids)
        scores = drawn - np.logaddexp.reduce(drawn)
        first = np.argsort(-scores, kind="stable")[:width]
        children.append(list(zip(tokens[first].tolist(), scores[first].tolist(), strict=True)))
    return padded_layer(children)


def best_drawn_of(
    candidates: Sequence[tuple[int, float]], width: int, noise: SamplingParams, position: int
) -> list[tuple[int, float]]:
    """The same for (token, log-probability) pairs of one node, which need not add up to certainty.

    What is missing counts as one token more, without noise.
    """
    if not candidates:
        return []
    tokens = np.array([token for token, _ in candidates], dtype=np.int64)
    log_probs = np.array([log_prob for _, log_prob in candidates])
    drawn = log_probs + noise.temperature * gumbel_noise_of(noise.seed, position, tokens)
    rest = 1.0 - float(np.exp(log_probs).sum())
    total = np.logaddexp.reduce(drawn)
    scores = drawn - (np.logaddexp(total, math.log(rest)) if rest > 0 else total)
    first = np.argsort(-scores, kind="stable")[:width]
    return list(zip(tokens[first].tolist(), scores[first].tolist(), strict=True))


def _allowed(log_probs: torch.Tensor, noise: SamplingParams) -> np.ndarray:
    """Which of the likeliest tokens [f, c] the filters leave: bool [f, c]."""
    if not noise.top_k and noise.top_p == 1:
        return np.ones(tuple(log_probs.shape), dtype=np.bool_)
    scores = TemperatureLogitsWarper(float(noise.temperature))(_NO_TOKENS, log_probs)
    if noise.top_k:
        scores = TopKLogitsWarper(min(noise.top_k, scores.shape[-1]))(_NO_TOKENS, scores)
    if noise.top_p < 1:
        scores = TopPLogitsWarper(noise.top_p)(_NO_TOKENS, scores)
    allowed: np.ndarray = torch.isfinite(scores).numpy()
    return allowed
