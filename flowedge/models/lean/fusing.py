"""Linear layers that read the same rows, joined to one layer with one product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flowedge.models.quant.int4 import Int4Linear
from flowedge.models.quant.w8a16 import GroupedW8A16Linear, W8A16Linear


def fuse(parts: Sequence[nn.Module]) -> nn.Module | None:
    """Return a layer whose result is the results of `parts` beside each other; None where there is none.

    The weights of `parts` are freed one after the other, so that both forms are never in memory together.
    """
    kinds = {type(part) for part in parts}
    if len(kinds) > 1 or len({getattr(part, "bias", None) is None for part in parts}) > 1:
        return None
    kind, linears = kinds.pop(), list[Any](parts)
    if kind is nn.Linear:
        return _fused_linear(linears)
    if kind is Int4Linear:
        return Int4Linear.joined(linears)
    if kind in (W8A16Linear, GroupedW8A16Linear):
        return W8A16Linear.joined(linears)
    return None


def _fused_linear(parts: Sequence[nn.Linear]) -> nn.Linear | None:
    first = parts[0]
    if any(part.weight.dtype != first.weight.dtype for part in parts):
        return None
    fused = nn.Linear(first.in_features, sum(part.out_features for part in parts), bias=False, device="meta")
    biases: list[torch.Tensor] = [part.bias for part in parts if part.bias is not None]
    if biases:
        fused.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    fused.weight = nn.Parameter(_joined_weights(parts), requires_grad=False)
    return fused


def _joined_weights(parts: Sequence[nn.Linear]) -> torch.Tensor:
    like, rows = parts[0].weight, sum(part.out_features for part in parts)
    joined = torch.empty((rows, like.shape[1]), dtype=like.dtype, device=like.device)
    start = 0
    for part in parts:
        joined[start : start + part.out_features] = part.weight.detach()
        start += part.out_features
        part.weight = nn.Parameter(torch.empty(0), requires_grad=False)
    return joined
