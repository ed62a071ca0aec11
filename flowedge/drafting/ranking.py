"""From logits to the children of nodes: the likeliest tokens, or those that the target will draw.

A target draws argmax(log p + T g) over the tokens that its filters keep, and the noise g is known before the
draw: it depends on the seed, the position and the token alone (rule R1). A drafter that ranks tokens by
log q + T g proposes what the target will draw if q is near p; ranked by log q, what it draws most often. What
is drawn is the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from flowedge.core.arrays import IntArray
from flowedge.core.sampling import SamplingParams, gumbel_noise, gumbel_noise_of
from flowedge.drafting.drafter import DraftLayer

# How far a target's logits are from its drafter's: the scale of Gumbel errors under which scores agree best
# with what is drawn (docs/drafters.md).
ERROR_SCALE = 0.8
_NOISIEST = 1e30  # T g stays finite in float32; nothing but noise counts long before
_FIRST_COUNT = 256  # tokens of a row that a top-p filter is looked for in at first
_KEPT_NOISES = 32  # nodes of a tree share few positions, and its successors share them again


def ranked(
    logits: torch.Tensor,
    width: int,
    noise: SamplingParams | None,
    positions: Sequence[int],
    ids: IntArray | None = None,
) -> DraftLayer:
    """The children of f nodes: the `width` best tokens of each, by noise where there is one.

    Args:
        logits: [f, columns] of the drafter.
        positions: f absolute positions, of the tokens that are drawn after each node.
        ids: [columns], the target's ids of the columns; None where they are the same.
    """
    if noise is None:
        scores = torch.log_softmax(logits, dim=-1)
    else:
        scores = drawn_scores(logits, noise, positions, ids)
    best = torch.topk(scores, min(width, scores.shape[-1]), dim=-1)
    columns: IntArray = best.indices.cpu().numpy()
    return DraftLayer(columns if ids is None else ids[columns], best.values.double().cpu().numpy())


def drawn_scores(
    logits: torch.Tensor, noise: SamplingParams, positions: Sequence[int], ids: IntArray | None = None
) -> torch.Tensor:
    """Log-probabilities that tokens are drawn, given the noise of the draws: [f, columns] as `logits`.

    The target's logits are taken to be the drafter's plus independent Gumbel errors of scale s. Then, without
    filters, token v is drawn with probability softmax((log q + T g) / s). A token that the filters would
    leave out of q, its log q below f, that of the least likely token they keep, takes an error of f - log q
    to be kept, and may then be drawn as easily as the best of the others, no more easily:

        (log q(v) - f + min(log q(v) + T g(v), best kept)) / s

    takes the place of (log q + T g) / s. So the first child is what is drawn if q is p.
    """
    vocab = logits.shape[-1] if ids is None else int(ids.max()) + 1
    noises = {position: _noise(noise.seed, position, vocab) for position in positions}
    # A layer of one depth has one position, and one noise for all rows.
    rows = [noises[position] for position in (positions if len(noises) > 1 else noises)]
    drawn = torch.stack(rows) if ids is None else torch.stack(rows)[:, torch.from_numpy(ids)]
    drawn = torch.add(logits, drawn.to(logits.device), alpha=min(noise.temperature, _NOISIEST))
    if noise.top_k or noise.top_p < 1:
        lacking = (_least_kept(logits, noise) - logits).clamp(min=0)
        best = torch.where(lacking == 0, drawn, -torch.inf).amax(dim=-1, keepdim=True)
        drawn = torch.minimum(drawn, best) - lacking
    return torch.log_softmax(drawn.div_(ERROR_SCALE), dim=-1)


def best_drawn_of(
    candidates: Sequence[tuple[int, float]], width: int, noise: SamplingParams, position: int
) -> list[tuple[int, float]]:
    """The `width` best by noise of (token, log-probability) pairs, whose probabilities need not add up to 1.

    What is missing counts as one token more, with a noise of 0. Filters leave nothing out: they would be
    those of a distribution that is not known.
    """
    if not candidates:
        return []
    tokens = np.array([token for token, _ in candidates], dtype=np.int64)
    log_probs = np.array([log_prob for _, log_prob in candidates])
    missing = 1.0 - float(np.exp(log_probs).sum())
    temperature = min(noise.temperature, _NOISIEST)
    drawn = log_probs + temperature * gumbel_noise_of(noise.seed, position, tokens)
    scaled = np.append(drawn, math.log(missing) if missing > 0 else -np.inf) / ERROR_SCALE
    scaled -= scaled.max()
    scores = (scaled - np.log(np.exp(scaled).sum()))[:-1]
    first = np.argsort(-scores, kind="stable")[:width]
    return list(zip(tokens[first].tolist(), scores[first].tolist(), strict=True))


def _least_kept(logits: torch.Tensor, noise: SamplingParams) -> torch.Tensor:
    """The logit [f, 1] of the least likely token that the filters keep of each row."""
    most = logits.shape[-1]
    if noise.top_k:
        most = min(noise.top_k, most)
    if noise.top_p == 1:
        return torch.topk(logits, most, dim=-1).values[:, -1:]
    count = min(_FIRST_COUNT, most)
    temperature = max(noise.temperature, 1e-3)  # below, only the likeliest token is kept
    total = torch.logsumexp(_most_likely(logits, most) / temperature, dim=-1, keepdim=True)
    least = torch.empty_like(total)
    rows = torch.arange(len(logits))
    while len(rows):
        best = torch.topk(logits[rows], count, dim=-1).values
        shares = torch.exp(best / temperature - total[rows])
        kept = shares.cumsum(dim=-1) - shares < noise.top_p  # by the mass of those that are likelier
        least[rows] = best.gather(-1, kept.sum(dim=-1, keepdim=True) - 1)
        rows = rows[kept[:, -1]] if count < most else rows[:0]
        count = min(8 * count, most)
    return least


def _most_likely(logits: torch.Tensor, count: int) -> torch.Tensor:
    if count == logits.shape[-1]:
        return logits
    return torch.topk(logits, count, dim=-1).values


@lru_cache(maxsize=_KEPT_NOISES)
def _noise(seed: int, position: int, vocab: int) -> torch.Tensor:
    """The noise of every token at a position: float32 [vocab]."""
    return torch.from_numpy(gumbel_noise(seed, position, vocab)).float()
