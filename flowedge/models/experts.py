"""Mixtures of experts, with a linear layer for each weight of each expert."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from flowedge.models.architecture import Architecture
from flowedge.models.families.parts import Clamp, Experts
from flowedge.models.host.copies import to_device, to_host
from flowedge.models.row_counts import ANY_COUNT
from flowedge.models.row_functions import Activate, DecidingLinear, activation_of, plain_norm_call

_VECTOR = 32


class Router(nn.Module):
    """Chooses the experts of each row, with the operations of transformers' routers.

    Attributes:
        precise: the parameters that are float32 in a model of any dtype.
    """

    def __init__(self, hidden: int, experts: Experts) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts.count, hidden))
        self.bias = nn.Parameter(torch.empty(experts.count)) if experts.biases else None
        self.choice_bias = nn.Parameter(torch.empty(experts.count)) if experts.choice_bias else None
        self.experts = experts
        self.precise = ("choice_bias",) if experts.unrounded else ()

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights and the indices [n, chosen] of the experts of rows [n, hidden]."""
        experts = self.experts
        own = (rows.float(), self.weight.float()) if experts.unrounded else (rows, self.weight)
        products = functional.linear(*own, self.bias)
        if experts.scores == "sigmoid":
            scores = _sigmoid(products if experts.rounded else products.float()).float()
        else:
            scores = torch.softmax(products.float(), dim=-1)
        biased = scores if self.choice_bias is None else scores + self.choice_bias
        chosen = torch.topk(biased, experts.chosen, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if experts.normalised:
            weights /= weights.sum(dim=-1, keepdim=True) + experts.least_sum
        weights *= experts.scale
        return (weights.to(rows.dtype) if experts.rounded else weights), chosen


def _sigmoid(products: torch.Tensor) -> torch.Tensor:
    """The sigmoids [n, count] of products, in whole vectors of a CPU, so that the bits do not depend on n."""
    count = products.shape[1]
    return functional.pad(products, (0, -count % _VECTOR)).sigmoid()[:, :count]


class ScaledRouter(nn.Module):
    """Gemma 4's router, which norms its rows and scales the weights of experts, as transformers does."""

    def __init__(self, hidden: int, experts: Experts, epsilon: float) -> None:
        """Make the router, whose weights are not loaded."""
        super().__init__()
        self.scale = nn.Parameter(torch.empty(hidden))
        self.proj = DecidingLinear(hidden, experts.count)
        self.per_expert_scale = nn.Parameter(torch.empty(experts.count))
        self.experts, self.epsilon = experts, epsilon
        self._share = hidden**-0.5

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights and the indices [n, chosen] of the experts of rows [n, hidden]."""
        normed = plain_norm_call(rows.shape[1], self.epsilon)(rows) * self.scale * self._share
        likelihoods = torch.softmax(functional.linear(normed, self.proj.weight).float(), dim=-1)
        weights, chosen = torch.topk(likelihoods, self.experts.chosen, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        return weights * self.per_expert_scale[chosen], chosen

    @property
    def factor(self) -> torch.Tensor:
        """The float32 factor [hidden] of normed rows."""
        factor: torch.Tensor = self.scale.float() * self._share
        return factor


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
        gated: bool = True,
        biases: bool = False,
        clamp: Clamp | None = None,
    ) -> None:
        """Make `count` experts whose hidden values are `inner` wide; their weights are not loaded."""
        super().__init__()
        self._gated, self.activation, self.clamp = gated, activation, clamp
        self.row_counts = ANY_COUNT
        for index in range(count):
            expert = nn.Module()
            for name in ("gate_proj", "up_proj") if gated else ("up_proj",):
                setattr(expert, name, nn.Linear(hidden, inner, bias=biases))
            expert.down_proj = nn.Linear(inner, hidden, bias=biases)
            self.add_module(str(index), expert)

    @classmethod
    def of(cls, architecture: Architecture, experts: Experts) -> ExpertLinears:
        """Make the experts of a layer."""
        return cls(
            activation_of(architecture.activation, experts.clamp),
            architecture.hidden,
            experts.intermediate,
            experts.count,
            gated=architecture.gated,
            biases=experts.biases,
            clamp=experts.clamp,
        )

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
        if not self._gated:
            alone: torch.Tensor = expert.down_proj(self.activation(expert.up_proj(rows)))
            return alone
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
        self.experts = ExpertLinears.of(architecture, experts)
        self.shared_expert = shared
        gated = shared is not None and experts.shared_gate
        self.shared_expert_gate = DecidingLinear(architecture.hidden, 1) if gated else None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden] for `rows` of this shape."""
        computed: torch.Tensor = self.experts(rows, *self.gate(rows))
        if self.shared_expert is None:
            return computed
        shared: torch.Tensor = self.shared_expert(rows)
        if self.shared_expert_gate is not None:
            shared = self.shared_expert_gate.padded(rows).sigmoid()[:, :1] * shared
        return computed + shared
