"""Checks of what a block is asked to compute."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from flowedge.core.errors import ProtocolError
from flowedge.models.copies import to_host


def check_inputs(inputs: torch.Tensor, vocab_size: int | None, width: int, dtype: torch.dtype) -> None:
    """Raise ProtocolError where the inputs of `LayerBlock.forward` contradict their description.

    Args:
        vocab_size: the size of the vocabulary in the first block; None in others.
    """
    if vocab_size is None:
        if inputs.ndim != 2 or inputs.shape[1] != width or inputs.dtype != dtype:
            raise ProtocolError(
                f"expected hidden rows [n, {width}] of {dtype}, got {list(inputs.shape)} of {inputs.dtype}"
            )
    elif inputs.ndim != 1 or inputs.dtype != torch.int64:
        raise ProtocolError(f"expected int64 token ids [n], got {list(inputs.shape)} of {inputs.dtype}")
    if not len(inputs):
        raise ProtocolError("a segment without rows cannot be computed")
    if vocab_size is not None and not all_within(inputs, vocab_size):
        raise ProtocolError(f"a token id is not within [0, {vocab_size})")


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
