"""The gated delta rule, one row at a time: transformers' recurrent form of it, with its operations."""

from __future__ import annotations

import torch
from torch.nn import functional

_LEAST = 1e-6  # added to the squared length of queries and keys


def convolved(recent: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The activated convolution [channels] of the rows of a path.

    Args:
        recent: float32 [inputs, channels], the row itself last; weight: float32 [channels, inputs].
    """
    return functional.silu((recent * weight.t()).sum(0))


def unit_length(heads: torch.Tensor) -> torch.Tensor:
    """Heads [n, size], each divided by its length."""
    return heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + _LEAST)


def updated(
    state: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rate: torch.Tensor, decay: torch.Tensor
) -> torch.Tensor:
    """The state after a row: S' = decay S + rate key (value - decay S^T key)^T.

    Args:
        state: [heads, key_size, value_size].
        key: [heads, key_size] of unit length; value: [heads, value_size]; rate, decay: [heads].
    """
    faded = state * decay[:, None, None]
    known = (faded * key[:, :, None]).sum(1)
    difference = (value - known) * rate[:, None]
    return faded + key[:, :, None] * difference[:, None]


def read(state: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """What queries [heads, key_size] read of a state [heads, key_size, value_size]: [heads, value_size]."""
    return (state * query[:, :, None]).sum(1)
