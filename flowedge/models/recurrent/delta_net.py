"""A gated delta net in the place of attention, computed by torch one row at a time.

The operations are those of transformers' recurrent form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flowedge.models.architecture import Architecture, DeltaNet
from flowedge.models.recurrent.recurrent_layer import Updates
from flowedge.models.recurrent.row_states import RowStates
from flowedge.models.recurrent.row_steps import UpdateSteps
from flowedge.models.row_functions import DecidingLinear, RmsNorm

_LEAST = 1e-6  # added to the squared length of queries and keys


class GatedDeltaNet(nn.Module):
    """A RecurrentLayer whose modules are named as transformers' modules."""

    def __init__(self, architecture: Architecture, net: DeltaNet, index: int) -> None:
        """Make the layer part, whose weights are not loaded."""
        super().__init__()
        self.index, self.net = index, net
        hidden, values = architecture.hidden, net.value_heads * net.value_size
        self.in_proj_qkv = nn.Linear(hidden, net.convolved, bias=False)
        self.in_proj_z = nn.Linear(hidden, values, bias=False)
        self.in_proj_b, self.in_proj_a = (DecidingLinear(hidden, net.value_heads) for _ in range(2))
        self.out_proj = nn.Linear(values, hidden, bias=False)
        self.conv1d = nn.Conv1d(net.convolved, net.convolved, net.inputs, groups=net.convolved, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(net.value_heads))
        self.A_log = nn.Parameter(torch.empty(net.value_heads))
        self.norm = RmsNorm(net.value_size, architecture.norm_eps)

    @property
    def projections(self) -> list[nn.Module]:
        """The linear layers to what is convolved, the output's gates, rates of update, and decays."""
        return [self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a]

    def forward(self, rows: torch.Tensor, updates: Updates, _rotation: Any) -> torch.Tensor:
        """Return [rows, hidden] for the normed `rows` of this shape."""
        mixed, gates, rates, decays = (project(rows) for project in self.projections)
        steps = functional.softplus(decays.float() + self.dt_bias)
        fading = (-self.A_log.float().exp() * steps).exp()
        inputs = torch.cat((mixed.float(), rates.sigmoid().float(), fading), 1)
        values = updates.update(self, inputs).to(rows.dtype)
        heads = (len(rows), self.net.value_heads, self.net.value_size)
        gated = self.norm(values.view(heads)) * functional.silu(gates.view(heads).float())
        output: torch.Tensor = self.out_proj(gated.to(rows.dtype).flatten(1))
        return output

    def run(self, states: RowStates, steps: UpdateSteps, paths: torch.Tensor, rows: int) -> torch.Tensor:
        """As of RecurrentLayer."""
        net, recent = self.net, states.recent[self.index]
        held = states.states[self.index]
        own, size = held[..., : net.value_size], net.key_heads * net.key_size
        places = [own, *(torch.empty_like(own) for _ in range(steps.places))]
        outputs = recent.new_zeros((rows, net.value_heads, net.value_size))
        weight = self.conv1d.weight.squeeze(1).float()
        taken = zip(steps.sources.tolist(), steps.targets.tolist(), steps.outputs.tolist(), strict=True)
        for step, (source, target, output) in enumerate(taken):
            path = recent[paths[step]]
            mixed = _convolved(path[:, : net.convolved], weight)
            query, key = (self._by_value_head(mixed[at : at + size]) for at in (0, size))
            value = mixed[2 * size :].view(net.value_heads, net.value_size)
            rate, decay = path[-1, net.convolved :].chunk(2)
            places[target].copy_(_updated(places[source], _unit_length(key), value, rate, decay))
            if output >= 0:
                outputs[output] = _read(places[target], _unit_length(query) / net.key_size**0.5)
        return outputs.flatten(1)

    def _by_value_head(self, heads: torch.Tensor) -> torch.Tensor:
        """Queries or keys [key_heads * key_size] for each head of values."""
        net, own = self.net, heads.view(self.net.key_heads, self.net.key_size)
        times = net.value_heads // net.key_heads
        return own.repeat(times, 1) if net.tiled else own.repeat_interleave(times, dim=0)


def _convolved(recent: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The activated convolution [channels] of the rows of a path.

    Args:
        recent: float32 [inputs, channels], the row itself last; weight: float32 [channels, inputs].
    """
    return functional.silu((recent * weight.t()).sum(0))


def _unit_length(heads: torch.Tensor) -> torch.Tensor:
    """Heads [n, size], each divided by its length."""
    return heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + _LEAST)


def _updated(
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


def _read(state: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """What queries [heads, key_size] read of a state [heads, key_size, value_size]: [heads, value_size]."""
    return (state * query[:, :, None]).sum(1)
