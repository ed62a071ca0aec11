"""Layers whose rows update a matrix for each head in the place of attention, computed by torch row by row."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn import functional

from flowedge.models.families.parts import LinearRecurrence
from flowedge.models.recurrent.row_states import RowStates
from flowedge.models.recurrent.row_steps import UpdateSteps


class RecurrentHeads(nn.Module, ABC):
    """What layers of a linear recurrence share: a RecurrentLayer whose modules have transformers' names."""

    net: LinearRecurrence

    def __init__(self, net: LinearRecurrence, index: int, *, convolution_bias: bool = False) -> None:
        """Make the shared parts, whose weights are not loaded."""
        super().__init__()
        self.index, self.net = index, net
        width = net.convolved
        self.conv1d = nn.Conv1d(width, width, net.inputs, groups=width, bias=convolution_bias)
        self.dt_bias = nn.Parameter(torch.empty(net.value_heads))
        self.A_log = nn.Parameter(torch.empty(net.value_heads))

    @abstractmethod
    def parts(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Divide what is convolved [convolved] into queries and keys [keys], and values [values]."""

    @abstractmethod
    def updated(
        self,
        state: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rate: torch.Tensor,
        decay: torch.Tensor,
    ) -> torch.Tensor:
        """Return the state after a row.

        Args:
            state: [heads, key_size, value_size].
            key: [heads, key_size]; value: [heads, value_size]; rate, decay: [heads].
        """

    @abstractmethod
    def read(self, state: torch.Tensor, query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return what a row [heads, value_size] reads of the state after its update; arguments likewise."""

    def steps_and_decays(self, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lengths of steps, and the decays that follow from them, for products [rows, heads]."""
        lengths = functional.softplus(steps.float() + self.dt_bias)
        return lengths, (-self.A_log.float().exp() * lengths).exp()

    def run(self, states: RowStates, steps: UpdateSteps, paths: torch.Tensor, rows: int) -> torch.Tensor:
        """As of RecurrentLayer."""
        net, recent = self.net, states.recent[self.index]
        held = states.states[self.index]
        own = held[..., : net.value_size]
        places = [own, *(torch.empty_like(own) for _ in range(steps.places))]
        outputs = recent.new_zeros((rows, net.value_heads, net.value_size))
        weight = self.conv1d.weight.squeeze(1).float()
        bias = None if self.conv1d.bias is None else self.conv1d.bias.float()
        taken = zip(steps.sources.tolist(), steps.targets.tolist(), steps.outputs.tolist(), strict=True)
        for step, (source, target, output) in enumerate(taken):
            path = recent[paths[step]]
            query, key, value = self.parts(_convolved(path[:, : net.convolved], weight, bias))
            query, key = self._by_value_head(query), self._by_value_head(key)
            value = value.view(net.value_heads, net.value_size)
            rate, decay = path[-1, net.convolved :].chunk(2)
            places[target].copy_(self.updated(places[source], key, value, rate, decay))
            if output >= 0:
                outputs[output] = self.read(places[target], query, value)
        return outputs.flatten(1)

    def _by_value_head(self, heads: torch.Tensor) -> torch.Tensor:
        """Queries or keys [key_heads * key_size] for each head of values."""
        net, own = self.net, heads.view(self.net.key_heads, self.net.key_size)
        times = net.value_heads // net.key_heads
        return own.repeat(times, 1) if net.tiled else own.repeat_interleave(times, dim=0)


def read_of(state: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """What queries [heads, key_size] read of a state [heads, key_size, value_size]: [heads, value_size]."""
    return (state * query[:, :, None]).sum(1)


def _convolved(recent: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The activated convolution [channels] of the rows of a path.

    Args:
        recent: float32 [inputs, channels], the row itself last.
        weight: float32 [channels, inputs]; bias: float32 [channels].
    """
    total = (recent * weight.t()).sum(0)
    return functional.silu(total if bias is None else total + bias)
