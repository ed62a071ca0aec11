"""A gated delta net in the place of attention. The operations are those of transformers' recurrent form."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flowedge.models.architecture import Architecture
from flowedge.models.families.parts import DeltaNet
from flowedge.models.recurrent.linear_recurrence import RecurrentHeads, read_of
from flowedge.models.recurrent.recurrent_layer import Updates
from flowedge.models.row_functions import DecidingLinear, RmsNorm

_LEAST = 1e-6  # added to the squared length of queries and keys


class GatedDeltaNet(RecurrentHeads):
    """The part of a layer that stands in the place of attention."""

    net: DeltaNet

    def __init__(self, architecture: Architecture, net: DeltaNet, index: int) -> None:
        """Make the layer part, whose weights are not loaded."""
        super().__init__(net, index)
        hidden = architecture.hidden
        self.in_proj_qkv = nn.Linear(hidden, net.convolved, bias=False)
        self.in_proj_z = nn.Linear(hidden, net.values, bias=False)
        self.in_proj_b, self.in_proj_a = (DecidingLinear(hidden, net.value_heads) for _ in range(2))
        self.out_proj = nn.Linear(net.values, hidden, bias=False)
        self.norm = RmsNorm(net.value_size, architecture.norm_eps)

    @property
    def projections(self) -> list[nn.Module]:
        """The linear layers to what is convolved, the output's gates, rates of update, and decays."""
        return [self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a]

    def forward(self, rows: torch.Tensor, updates: Updates, _rotation: Any) -> torch.Tensor:
        """Return [rows, hidden] for the normed `rows` of this shape."""
        mixed, gates, rates, decays = (project(rows) for project in self.projections)
        _, fading = self.steps_and_decays(decays)
        inputs = torch.cat((mixed.float(), rates.sigmoid().float(), fading), 1)
        values = updates.update(self, inputs).to(rows.dtype)
        heads = (len(rows), self.net.value_heads, self.net.value_size)
        gated = self.norm(values.view(heads)) * functional.silu(gates.view(heads).float())
        output: torch.Tensor = self.out_proj(gated.to(rows.dtype).flatten(1))
        return output

    def parts(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = mixed.split_with_sizes((self.net.keys, self.net.keys, self.net.values))
        return query, key, value

    def updated(
        self,
        state: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rate: torch.Tensor,
        decay: torch.Tensor,
    ) -> torch.Tensor:
        """S' = decay S + rate key (value - decay S^T key)^T, with keys of unit length."""
        faded, key = state * decay[:, None, None], _unit_length(key)
        difference = (value - read_of(faded, key)) * rate[:, None]
        return faded + key[:, :, None] * difference[:, None]

    def read(self, state: torch.Tensor, query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return read_of(state, _unit_length(query) / self.net.key_size**0.5)


def _unit_length(heads: torch.Tensor) -> torch.Tensor:
    """Heads [n, size], each divided by its length."""
    return heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + _LEAST)
