"""Checks of what a block is asked to compute."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from flowedge.core.errors import ProtocolError
from flowedge.models.copies import to_host


def all_within(tokens: torch.Tensor, vocab_size: int) -> bool:
    """Whether all token ids are of the vocabulary, as far as that is known without waiting for a GPU."""
    if tokens.device.type != "cpu":
        return True
    (ids,) = to_host(tokens)
    return bool(ids.min() >= 0 and ids.max() < vocab_size)


def check_indices(
    positions: npt.NDArray[np.int64],
    tail_parents: npt.NDArray[np.int64],
    cached: int,
    context: int,
    rows: int,
) -> None:
    """Raise ProtocolError where the arguments of `LayerBlock.forward` contradict their description."""
    if not 0 <= context <= cached:
        raise ProtocolError(f"context {context} is not within the {cached} cached rows")
    if positions.shape != (rows,) or positions.dtype != np.int64:
        raise ProtocolError(
            f"expected {rows} int64 positions, got {list(positions.shape)} of {positions.dtype}"
        )
    if tail_parents.shape != (cached + rows - context,) or tail_parents.dtype != np.int64:
        raise ProtocolError(
            f"expected {cached + rows - context} int64 tail parents, "
            f"got {list(tail_parents.shape)} of {tail_parents.dtype}"
        )
    if (positions < context).any() or (positions > np.arange(cached, cached + rows)).any():
        raise ProtocolError(f"a position is not within [{context}, the row's slot]")
