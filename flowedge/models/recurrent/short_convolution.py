"""A gated short convolution over the rows of a path in the place of attention, computed by torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flowedge.models.architecture import Architecture
from flowedge.models.families.parts import ShortConvolution
from flowedge.models.recurrent.recurrent_layer import Updates
from flowedge.models.recurrent.row_states import RowStates
from flowedge.models.recurrent.row_steps import UpdateSteps


class GatedConvolution(nn.Module):
    """A RecurrentLayer that has no state but the last rows; modules are named as transformers' modules."""

    def __init__(self, architecture: Architecture, net: ShortConvolution, index: int) -> None:
        """Make the layer, whose weights are not loaded."""
        super().__init__()
        self.index, self.net = index, net
        width = architecture.hidden
        self.in_proj = nn.Linear(width, 3 * width, bias=False)  # to gates before and after, and to values
        self.conv = nn.Conv1d(width, width, net.inputs, groups=width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)

    def forward(self, rows: torch.Tensor, updates: Updates, _rotation: Any) -> torch.Tensor:
        """Return [rows, hidden] for the normed `rows` of this shape."""
        before, after, values = self.in_proj(rows).chunk(3, 1)
        convolved = updates.update(self, (before * values).float()).to(rows.dtype)
        output: torch.Tensor = self.out_proj(after * convolved)
        return output

    def run(self, states: RowStates, steps: UpdateSteps, paths: torch.Tensor, rows: int) -> torch.Tensor:
        """As of RecurrentLayer."""
        recent, weight = states.recent[self.index], self.conv.weight.squeeze(1).float().t()
        outputs = recent.new_zeros((rows, recent.shape[1]))
        for step, output in enumerate(steps.outputs.tolist()):
            if output >= 0:
                outputs[output] = (recent[paths[step]] * weight).sum(0)
        return outputs
