"""A state space of Mamba-2 in the place of attention, with the operations of transformers' recurrent form."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flowedge.models.architecture import Architecture
from flowedge.models.families.parts import Mamba2
from flowedge.models.recurrent.linear_recurrence import RecurrentHeads, read_of
from flowedge.models.recurrent.recurrent_layer import Updates
from flowedge.models.row_functions import RmsNorm


class StateSpace(RecurrentHeads):
    """The part of a layer that stands in the place of attention."""

    net: Mamba2

    def __init__(self, architecture: Architecture, net: Mamba2, index: int) -> None:
        """Make the layer part, whose weights are not loaded."""
        super().__init__(net, index, convolution_bias=net.convolution_bias)
        hidden = architecture.hidden
        self.in_proj = nn.Linear(hidden, net.values + net.convolved + net.value_heads, bias=False)
        self.out_proj = nn.Linear(net.values, hidden, bias=False)
        self.D = nn.Parameter(torch.empty(net.value_heads))
        self.norm = RmsNorm(net.values, architecture.norm_eps, groups=net.key_heads)

    @property
    def projections(self) -> list[nn.Module]:
        """The linear layer to the output's gates, what is convolved, and the lengths of steps."""
        return [self.in_proj]

    def forward(self, rows: torch.Tensor, updates: Updates, _rotation: Any) -> torch.Tensor:
        """Return [rows, hidden] for the normed `rows` of this shape."""
        net = self.net
        gates, mixed, steps = self.in_proj(rows).split_with_sizes(
            (net.values, net.convolved, net.value_heads), 1
        )
        inputs = torch.cat((mixed.float(), *self.steps_and_decays(steps)), 1)
        gated = updates.update(self, inputs) * functional.silu(gates.float())
        output: torch.Tensor = self.out_proj(self.norm(gated).to(rows.dtype))
        return output

    def parts(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        value, key, query = mixed.split_with_sizes((self.net.values, self.net.keys, self.net.keys))
        return query, key, value

    def updated(
        self,
        state: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rate: torch.Tensor,
        decay: torch.Tensor,
    ) -> torch.Tensor:
        """S' = decay S + rate key value^T."""
        return state * decay[:, None, None] + key[:, :, None] * (value * rate[:, None])[:, None]

    def read(self, state: torch.Tensor, query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return read_of(state, query) + self.D.float()[:, None] * value
