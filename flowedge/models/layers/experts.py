"""Mixtures of experts with a linear layer for each weight of each expert."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from flowedge.models.copies import to_device, to_host
from flowedge.models.exact.row_counts import ANY_COUNT


class ExpertLinears(nn.Module):
    """Computes the same as transformers' experts modules, whose weights are stacked in 3-D tensors.

    The linear layers are read, quantised and counted like any other, and have the tensor names of
    checkpoints. A row's result depends on its own experts alone.
    """

    def __init__(self, stacked: Any) -> None:
        """Use views of the weights of `stacked`, a transformers experts module."""
        super().__init__()
        self.act_fn = stacked.act_fn
        self.row_counts = ANY_COUNT  # numbers of rows that an expert computes at once
        for index, (gate_up, down) in enumerate(zip(stacked.gate_up_proj, stacked.down_proj, strict=True)):
            gate, up = gate_up.chunk(2)
            expert = nn.Module()
            expert.gate_proj, expert.up_proj, expert.down_proj = map(_linear, (gate, up, down))
            self.add_module(str(index), expert)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The weighted sum [n, hidden] of each row's experts.

        Args:
            hidden_states: [n, hidden].
            top_k_index: int64 [n, k], the experts of each row; top_k_weights: [n, k], their weights.
        """
        # Which experts' weights are read is decided on the host, so a GPU is waited for once in each layer.
        (chosen,) = to_host(top_k_index)
        experts = chosen.reshape(-1)
        order = np.argsort(experts, kind="stable")  # by expert, then by row
        (places,) = to_device(hidden_states.device, order)
        rows, weights = places // chosen.shape[1], top_k_weights.reshape(-1)[places]
        output = torch.zeros_like(hidden_states)
        indices, starts, counts = np.unique(experts[order], return_index=True, return_counts=True)
        for index, start, count in zip(indices.tolist(), starts.tolist(), counts.tolist(), strict=True):
            expert: Any = self.get_submodule(str(index))
            own = slice(start, start + count)
            value = self.row_counts.apply(partial(self._mlp, expert), hidden_states[rows[own]])
            value = value * weights[own, None]
            # Each row is in `rows[own]` at most once, so additions do not collide.
            output.index_add_(0, rows[own], value.to(output.dtype))
        return output

    def _mlp(self, expert: Any, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = expert.down_proj(self.act_fn(expert.gate_proj(rows)) * expert.up_proj(rows))
        return product


def split_experts(module: nn.Module) -> nn.Module:
    """Replace every stacked experts module inside `module`, and return `module`."""
    for path, child in list(module.named_modules()):
        weight = getattr(child, "gate_up_proj", None)
        if isinstance(weight, nn.Parameter) and weight.ndim == 3:
            module.set_submodule(path, ExpertLinears(child))
    return module


def _linear(weight: torch.Tensor) -> nn.Linear:
    out_features, in_features = weight.shape
    linear = nn.Linear(in_features, out_features, bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    return linear
