"""The draws after the rows of a draft tree, from their final hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from flowedge.core.arrays import IntArray
from flowedge.models.lm_head import LMHead
from flowedge.models.sampling.path_logits import PathLogits
from flowedge.models.sampling.token_sampler import TokenSampler


def tree_draws(
    head: LMHead,
    sampler: TokenSampler,
    hidden: torch.Tensor,
    streams: torch.Tensor,
    parents: Sequence[int],
    positions: IntArray,
) -> Callable[[int], int]:
    """Return a function that draws the token after a row; it is called for the rows of one path.

    Where the head gives rows the same bits whatever their number, only the rows asked for are computed.

    Args:
        hidden: [n, hidden], on the device of the head; streams: `sampler.streams(positions)` there.
        parents: the parent of each row, -1 for the root; positions: int64 [n], of the drawn tokens.
    """
    if head.rows_are_apart:
        logits = PathLogits(head, hidden, parents)
        return lambda row: sampler.draw(logits.of(row), int(positions[row]))
    return sampler.draws(head.logits(hidden), positions, streams)
