"""Linear layers that read the same rows, joined to one layer with one product."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

QUERY_KEY_VALUE = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")


@runtime_checkable
class Joinable(Protocol):
    """A quantised linear layer that can be joined with others of its type."""

    @staticmethod
    def joined(parts: Any) -> nn.Module | None:
        """Return a layer whose result is the results of `parts` beside each other, or None."""


def adjacent_memory(layer: nn.Module, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """Memory for the weights of a layer that `fuse` joins, by the weights' names in the layer.

    Weights that are read into this memory are joined without a copy. There is none for weights that are
    fused already, or that belong to experts.
    """
    memory: dict[str, torch.Tensor] = {}
    for owner, names in (("self_attn", QUERY_KEY_VALUE), ("mlp", GATE_UP)):
        modules = getattr(layer, owner)._modules if hasattr(layer, owner) else {}
        own = [name for name in names if name in modules]
        parts = [part for name in own if type(part := modules[name]) is nn.Linear]
        if len(parts) == len(own) > 1:
            sizes = [part.out_features for part in parts]
            joined = torch.empty((sum(sizes), parts[0].in_features), dtype=dtype, device=device)
            weights = [f"{owner}.{name}.weight" for name in own]
            memory |= zip(weights, joined.split_with_sizes(sizes), strict=True)
    return memory


def fuse(parts: Sequence[nn.Module]) -> nn.Module | None:
    """Return a layer whose result is the results of `parts` beside each other; None where there is none.

    The weights of `parts` are freed one after the other, so that both forms are never in memory together.
    """
    kinds = {type(part) for part in parts}
    if len(kinds) > 1 or len({getattr(part, "bias", None) is None for part in parts}) > 1:
        return None
    linears = list[Any](parts)
    if type(linears[0]) is nn.Linear:
        return _fused_linear(linears)
    joined: nn.Module | None = linears[0].joined(linears) if isinstance(linears[0], Joinable) else None
    return joined


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
    """The rows of all weights in one tensor, which is their own memory where they lie in it one by one."""
    first = parts[0].weight.detach()
    shape = (sum(part.out_features for part in parts), parts[0].in_features)
    if _are_adjacent([part.weight for part in parts]):
        return first.as_strided(shape, first.stride())
    joined = torch.empty(shape, dtype=first.dtype, device=first.device)
    del first
    start = 0
    for part in parts:
        joined[start : start + part.out_features] = part.weight.detach()
        start += part.out_features
        part.weight = nn.Parameter(torch.empty(0), requires_grad=False)
    return joined


def _are_adjacent(weights: Sequence[torch.Tensor]) -> bool:
    """Whether contiguous weights follow each other in one allocation."""
    return all(
        one.untyped_storage().data_ptr() == next_one.untyped_storage().data_ptr()
        and one.is_contiguous()
        and next_one.is_contiguous()
        and one.storage_offset() + one.numel() == next_one.storage_offset()
        for one, next_one in pairwise(weights)
    )
