"""Ordered attention of rows that read the same keys: most forwards, with fewer calls of torch.

The results have the bits of the general way in `ordered_attention`, whose order of summation is used here.
The rows are one tail group and share their heads, so that nothing is divided or put together again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch.nn.functional import pad

LEAST_SCORE = -87.0  # below the largest; below that, exponentials are denormal, which takes CPUs long
ONES = 16  # columns of the product that adds up weights; a single column would be another kernel


class KeyMask(Protocol):
    """The keys that each row reads, [1, rows, keys] or [rows, keys]: see `ordered_attention`."""

    @property
    def added(self) -> torch.Tensor: ...

    @property
    def factor(self) -> torch.Tensor: ...


Part = tuple[torch.Tensor, KeyMask | None]  # keys and values [2, kv_heads, keys, head_size], and their mask


def can_be_joint(rows: int, queries: int, least_queries: int) -> bool:
    """Whether the masks of rows fit the scores of `queries` queries of a key head without being divided."""
    return rows == 1 or queries >= least_queries


def attend_jointly(
    query: torch.Tensor,
    tail: Part,
    ones: torch.Tensor,
    chunks: Iterable[Part] | None,
    scaling: float,
    softcap: float | None,
    least_queries: int,
) -> torch.Tensor:
    """The attention's output, of the shape and dtype of the queries [1, heads, rows, head_size].

    Args:
        tail: the tails of all rows.
        chunks: the chunks of their heads, of which each is read before the next is made; None for none.
        ones: [1, keys of the tail, ONES].
    """
    _, heads, rows, size = query.shape
    kv_heads = tail[0].shape[1]
    count = heads // kv_heads * rows
    queries = query.float().mul(scaling).reshape(kv_heads, count, size)
    if count < least_queries:
        queries = pad(queries, (0, 0, 0, least_queries - count))
    (keys, values), mask = tail
    scores = _scores(queries, keys, mask, rows, softcap)
    largest = scores.amax(-1, keepdim=True)
    weights = _weights(scores.sub_(largest), mask, rows)
    total = torch.bmm(weights, ones.expand(kv_heads, -1, -1)).narrow(2, 0, 1)
    weighted = torch.bmm(weights, values)
    if chunks is not None:
        total, weighted = _merged(_head(queries, chunks, rows, softcap), (largest, total, weighted))
    output = weighted.div_(total).to(query.dtype)
    if output.shape[1] != count:
        output = output.narrow(1, 0, count)
    return output.reshape(query.shape)


def _head(
    queries: torch.Tensor, chunks: Iterable[Part], rows: int, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The largest score, the sum of weights and the weighted sum of values over chunks, one by one."""
    sums: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    for (keys, values), mask in chunks:
        scores = _scores(queries, keys, mask, rows, softcap)
        largest = scores.amax(-1, keepdim=True)
        if sums is None:
            weights = _weights(scores.sub_(largest), mask, rows)
            sums = largest, weights.sum(-1, keepdim=True), torch.bmm(weights, values)
            continue
        before, total, weighted = sums
        largest = torch.maximum(before, largest)
        fading = before.sub_(largest).exp_()
        weights = _weights(scores.sub_(largest), mask, rows)
        total.mul_(fading).add_(weights.sum(-1, keepdim=True))
        weighted.mul_(fading).add_(torch.bmm(weights, values))
        sums = largest, total, weighted
    assert sums is not None, "there is a chunk"
    return sums


def _scores(
    queries: torch.Tensor, keys: torch.Tensor, mask: KeyMask | None, rows: int, softcap: float | None
) -> torch.Tensor:
    scores = torch.bmm(queries, keys.transpose(1, 2))
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    if mask is not None:
        _by_row(scores, rows).add_(mask.added)
    return scores


def _weights(scores: torch.Tensor, mask: KeyMask | None, rows: int) -> torch.Tensor:
    weights = scores.clamp_(min=LEAST_SCORE).exp_()
    if mask is not None:
        _by_row(weights, rows).mul_(mask.factor)
    return weights


def _by_row(scores: torch.Tensor, rows: int) -> torch.Tensor:
    """A view of scores [kv_heads, queries, keys] that a mask of the rows fits."""
    return scores if rows == 1 else scores.view(scores.shape[0], -1, rows, scores.shape[2])


def _merged(
    head: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    tail: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of weights and the weighted sum of values of both parts; the parts are overwritten."""
    largest = torch.maximum(head[0], tail[0])
    of_head, of_tail = head[0].sub_(largest).exp_(), tail[0].sub_(largest).exp_()
    total = head[1].mul_(of_head).add_(tail[1].mul(of_tail))
    return total, head[2].mul_(of_head).add_(tail[2].mul_(of_tail))
