"""Mixtures of experts, with a linear layer for each weight of each expert."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from flowedge.models.architecture import Architecture, Clamp, Experts
from flowedge.models.host.copies import to_device, to_host
from flowedge.models.row_counts import ANY_COUNT
from flowedge.models.row_functions import Activate, DecidingLinear, activation_of


class Router(nn.Module):
    """Chooses the experts of each row, with the operations of transformers' routers."""

    def __init__(self, hidden: int, experts: Experts) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts.count, hidden))
        self.bias = nn.Parameter(torch.empty(experts.count)) if experts.biases else None
        self.choice_bias = nn.Parameter(torch.empty(experts.count)) if experts.choice_bias else None
        self.experts = experts

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights and the indices [n, chosen] of the experts of rows [n, hidden]."""
        experts, products = self.experts, functional.linear(rows, self.weight, self.bias)
        if experts.scores == "sigmoid":
            scores = (products if experts.rounded else products.float()).sigmoid().float()
        else:
            scores = torch.softmax(products.float(), dim=-1)
        biased = scores if self.choice_bias is None else scores + self.choice_bias
        chosen = torch.topk(biased, experts.chosen, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if experts.normalised:
            weights /= weights.sum(dim=-1, keepdim=True) + experts.least_sum
        weights *= experts.scale
        return (weights.to(rows.dtype) if experts.rounded else weights), chosen


class ExpertLinears(nn.Module):
    """The experts of a layer; a row's result depends on its own experts alone.

    Attributes:
        activation: the activation of the gates.
        clamp: the bounds of gates and values; None for no bounds.
        row_counts: numbers of rows that an expert computes at once.
    """

    activation: Activate

    def __init__(
        self,
        activation: Activate,
        hidden: int,
        inner: int,
        count: int,
        *,
        biases: bool = False,
        clamp: Clamp | None = None,
    ) -> None:
        """Make `count` experts whose hidden values are `inner` wide; their weights are not loaded."""
        super().__init__()
        self.activation, self.clamp = activation, clamp
        self.row_counts = ANY_COUNT
        for index in range(count):
            expert = nn.Module()
            expert.gate_proj, expert.up_proj = (nn.Linear(hidden, inner, bias=biases) for _ in range(2))
            expert.down_proj = nn.Linear(inner, hidden, bias=biases)
            self.add_module(str(index), expert)

    def forward(self, rows: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The weighted sum [n, hidden] of the experts of rows [n, hidden].

        Args:
            weights, chosen: [n, k], the weights of each row's experts and their indices, int64.
        """
        # Which experts' weights are read is decided on the host, so a GPU is waited for once in each layer.
        (on_host,) = to_host(chosen)
        experts = on_host.reshape(-1)
        order = np.argsort(experts, kind="stable")  # by expert, then by row
        (ordered,) = to_device(rows.device, order)
        row_of, weight_of = ordered // on_host.shape[1], weights.reshape(-1)[ordered]
        output = torch.zeros_like(rows)
        indices, starts, counts = np.unique(experts[order], return_index=True, return_counts=True)
        for index, start, count in zip(indices.tolist(), starts.tolist(), counts.tolist(), strict=True):
            span = slice(start, start + count)
            mlp = partial(self._mlp, self.get_submodule(str(index)))
            computed = self.row_counts.apply(mlp, rows[row_of[span]]) * weight_of[span, None]
            # Each row is in `row_of[span]` at most once, so additions do not collide.
            output.index_add_(0, row_of[span], computed.to(output.dtype))
        return output

    def _mlp(self, expert: Any, rows: torch.Tensor) -> torch.Tensor:
        gate = self.activation(expert.gate_proj(rows))
        values = expert.up_proj(rows)
        if self.clamp is not None:
            values = values.clamp(-self.clamp.limit, self.clamp.limit) + 1
        product: torch.Tensor = expert.down_proj(gate * values)
        return product


class MixtureMlp(nn.Module):
    """An MLP of experts, of which each row is computed by a few, and by a shared one where there is one."""

    def __init__(self, architecture: Architecture, experts: Experts, shared: nn.Module | None = None) -> None:
        """shared: the MLP of the shared expert."""
        super().__init__()
        self.gate = Router(architecture.hidden, experts)
        self.experts = ExpertLinears(
            activation_of(architecture.activation, experts.clamp),
            architecture.hidden,
            experts.intermediate,
            experts.count,
            biases=experts.biases,
            clamp=experts.clamp,
        )
        self.shared_expert = shared
        if shared is not None:
            self.shared_expert_gate = DecidingLinear(architecture.hidden, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden] for `rows` of this shape."""
        computed: torch.Tensor = self.experts(rows, *self.gate(rows))
        if self.shared_expert is None:
            return computed
        shares = self.shared_expert_gate.padded(rows).sigmoid()[:, :1]
        shared: torch.Tensor = shares * self.shared_expert(rows)
        return computed + shared
