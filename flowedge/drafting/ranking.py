"""The ranking of a node's children: by probability, or by the probability that the target will draw them.

A target draws argmax(log p + T g) over the tokens that its filters keep. The noise g is known before the
draw, since it depends on the seed, the position and the token alone. If the drafter's q is near p, ranking by
log q + T g proposes the token that the target will draw; ranking by log q proposes the token that it draws
most often. The draws are the same either way.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from flowedge.core.arrays import FloatArray, IntArray
from flowedge.core.gumbel_noise import gumbel_noise_of, noise_streams
from flowedge.core.sampling import SamplingParams
from flowedge.device.kernel_library import library, missing_reason
from flowedge.drafting.drafter import DraftLayer, Scores, padded_layer
from flowedge.models.host.copies import to_device, to_host
from flowedge.models.kernels.structures import pointer
from flowedge.models.sampling.device_noise import near_noise


def likeliest(
    logits: torch.Tensor,
    most: int,
    noises: Sequence[torch.Tensor] = (),
    factor: float = 0.0,
    scale: float = 1.0,
) -> tuple[IntArray, FloatArray]:
    """Rank the columns of each row by (logit + factor * noise) / scale.

    Args:
        logits: float32 [rows, columns] in the host's memory.
        most: the number of columns to return, from 1 to all.
        noises: for each row float32 [columns]; empty for logits alone, which have no scale.

    Returns:
        The columns int64 [rows, most], the likeliest first and the lowest of equal columns first; and their
        log-probabilities among all columns, float64. A row with NaN or positive infinity has NaN.
    """
    logits = logits.contiguous()
    rows, columns = logits.shape
    found, logs = np.empty((rows, most), np.int64), np.empty((rows, most))
    addresses = (ctypes.c_void_p * rows)(*(noise.data_ptr() for noise in noises))
    library().flowedge_rank(
        pointer(logits),
        ctypes.c_int64(rows),
        ctypes.c_int64(columns),
        ctypes.c_int64(most),
        addresses,
        ctypes.c_float(factor),
        ctypes.c_float(scale),
        ctypes.c_void_p(found.ctypes.data),
        ctypes.c_void_p(logs.ctypes.data),
        torch.get_num_threads(),
    )
    return found, logs


# The distance of a target's logits from its drafter's: the scale of Gumbel errors under which scores agree
# best with the draws (docs/drafters.md).
ERROR_SCALE = 0.8
_NOISIEST = 1e30  # T g stays finite in float32; only noise counts at far lower temperatures
_FIRST_COUNT = 256  # the likeliest tokens that the bound of top-p is first searched in
RULED_OUT = -1e9  # added to the logits of tokens that may not follow; finite, so that no score is NaN
_CACHED_NOISES = 32  # the nodes of a tree, and of its successors, share few positions


@dataclass(frozen=True, eq=False)
class RankedNodes:
    """The f nodes of a session whose children are ranked.

    Attributes:
        logits: the drafter's logits [f, columns].
        width: the most children of each node.
        noise: by which children are ranked as well; None to rank them by probability.
        positions: the f absolute positions of the nodes' children.
        ids: int64 [columns] on the logits' device, the target's token of each column; None where columns are
            token ids.
    """

    logits: torch.Tensor
    width: int
    noise: SamplingParams | None
    positions: Sequence[int]
    ids: torch.Tensor | None = None


def with_added(logits: torch.Tensor, ids: torch.Tensor | None, added: Scores | None) -> torch.Tensor:
    """Return the logits [f, columns] of a drafter with what is added to them (see GrowRequest); `ids` as in
    RankedNodes."""
    if added is None:
        return logits
    columns = added[:, : logits.shape[-1]] if ids is None else added[:, to_host(ids)[0]]
    (change,) = to_device(logits.device, np.ascontiguousarray(columns))
    return logits.float() + change


def ranked(asked: Sequence[RankedNodes]) -> list[DraftLayer]:
    """Return the best children of the nodes of several sessions, with one copy to the host."""
    layers: dict[int, DraftLayer] = {}
    best: list[torch.Tensor] = []
    for index, each in enumerate(asked):
        if not len(each.logits):
            layers[index] = padded_layer([])
        elif _kernels_rank(each.logits, each.noise):
            layers[index] = _ranked_by_kernels(each)
        else:
            best += _best(each)
    copied = iter(to_host(*best) if best else ())
    return [
        layers[index] if index in layers else DraftLayer(next(copied), next(copied).astype(np.float64))
        for index in range(len(asked))
    ]


def _best(asked: RankedNodes) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens and the log-probabilities [f, width] of the best children, on the logits' device."""
    logits, ids = asked.logits, asked.ids
    if asked.noise is None:
        scores = torch.log_softmax(logits, dim=-1)
    else:
        scores = drawn_scores(logits, asked.noise, asked.positions, ids)
    best = torch.topk(scores, min(asked.width, scores.shape[-1]), dim=-1)
    return best.indices if ids is None else ids[best.indices], best.values


def drawn_scores(
    logits: torch.Tensor, noise: SamplingParams, positions: Sequence[int], ids: torch.Tensor | None = None
) -> torch.Tensor:
    """The log-probabilities [f, columns] that tokens are drawn, given the noise; arguments as in RankedNodes.

    The target's logits are assumed to be the drafter's plus independent Gumbel errors of scale s. Without
    filters, token v is then drawn with probability softmax((log q + T g) / s). Let f be the log q of the
    least likely token that the filters keep of q. A token below f needs an error of f - log q to be kept, and
    is then drawn no more easily than the best of the others, so its score is

        (log q(v) - f + min(log q(v) + T g(v), best kept)) / s

    With this the first child is the drawn token if q equals p.
    """
    noises = _noises(logits, noise, positions, ids)
    # Nodes of one depth share a position, and so the noise.
    rows = [noises[position] for position in (positions if len(noises) > 1 else noises)]
    drawn = torch.add(logits, torch.stack(rows), alpha=min(noise.temperature, _NOISIEST))
    if noise.top_k or noise.top_p < 1:
        lacking = (_least_ranked(logits, noise) - logits).clamp(min=0)
        best = torch.where(lacking == 0, drawn, -torch.inf).amax(dim=-1, keepdim=True)
        drawn = torch.minimum(drawn, best) - lacking
    return torch.log_softmax(drawn.div_(ERROR_SCALE), dim=-1)


def _kernels_rank(logits: torch.Tensor, noise: SamplingParams | None) -> bool:
    """Whether the kernels can rank logits: they know nothing of filters."""
    filtered = noise is not None and (noise.top_k or noise.top_p < 1)
    return not filtered and logits.is_cpu and logits.dtype == torch.float32 and not missing_reason()


def _ranked_by_kernels(asked: RankedNodes) -> DraftLayer:
    logits, noise, positions, ids = asked.logits, asked.noise, asked.positions, asked.ids
    width = min(asked.width, logits.shape[-1])
    if noise is None:
        columns, scores = likeliest(logits, width)
    else:
        by_position = _noises(logits, noise, positions, ids)
        rows = [by_position[position] for position in positions]
        columns, scores = likeliest(logits, width, rows, min(noise.temperature, _NOISIEST), ERROR_SCALE)
    return DraftLayer(columns if ids is None else ids.numpy()[columns], scores)


def _noises(
    logits: torch.Tensor, noise: SamplingParams, positions: Sequence[int], ids: torch.Tensor | None
) -> dict[int, torch.Tensor]:
    """The noise of all columns at each position."""
    columns, device = logits.shape[-1], logits.device
    return {
        position: _noise(noise.seed, position, columns, ids, device) for position in dict.fromkeys(positions)
    }


def best_drawn_of(
    candidates: Sequence[tuple[int, float]], width: int, noise: SamplingParams, position: int
) -> list[tuple[int, float]]:
    """Rank (token, log-probability) pairs with the noise at `position`, and return the best `width` of them.

    The probability that is missing to 1 counts as one more token with a noise of 0. Filters are not applied,
    because the whole distribution is not known.
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


def _least_ranked(logits: torch.Tensor, noise: SamplingParams) -> torch.Tensor:
    """The logit [f, 1] of the least likely token that the filters keep of each row."""
    most = logits.shape[-1]
    if noise.top_k:
        most = min(noise.top_k, most)
    if noise.top_p == 1:
        return torch.topk(logits, most, dim=-1).values[:, -1:]
    # On a GPU, searching again would wait for the result of the first search.
    count = min(_FIRST_COUNT, most) if logits.device.type == "cpu" else most
    temperature = max(noise.temperature, 1e-3)  # below, only the likeliest token is kept
    total = torch.logsumexp(_most_likely(logits, most) / temperature, dim=-1, keepdim=True)
    least = torch.empty_like(total)
    rows = torch.arange(len(logits), device=logits.device)
    while len(rows):
        best = torch.topk(logits[rows], count, dim=-1).values
        shares = torch.exp(best / temperature - total[rows])
        kept = shares.cumsum(dim=-1) - shares < noise.top_p  # the mass of likelier tokens decides
        # Of logits that are NaN none is kept; the caller finds NaN in the scores.
        least[rows] = best.gather(-1, (kept.sum(dim=-1, keepdim=True) - 1).clamp(min=0))
        rows = rows[kept[:, -1]] if count < most else rows[:0]
        count = min(8 * count, most)
    return least


def _most_likely(logits: torch.Tensor, count: int) -> torch.Tensor:
    if count == logits.shape[-1]:
        return logits
    return torch.topk(logits, count, dim=-1).values


@lru_cache(maxsize=_CACHED_NOISES)
def _noise(
    seed: int, position: int, columns: int, ids: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """The noise at a position, float32 [columns], of the columns' tokens; `ids` as in RankedNodes."""
    if device.type == "cpu":
        tokens = np.arange(columns) if ids is None else ids.numpy()
        return torch.from_numpy(gumbel_noise_of(seed, position, tokens)).float()
    (stream,) = to_device(device, noise_streams(seed, np.array([position])).view(np.int64))
    return near_noise(stream, torch.arange(columns, device=device) if ids is None else ids)[0]
