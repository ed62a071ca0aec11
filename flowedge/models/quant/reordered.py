"""A linear layer whose weight has its columns in another order than the input features."""

from __future__ import annotations

import torch
from torch import nn


class ReorderedLinear(nn.Module):
    """A quantised linear layer whose input features are put into the order of its weight's columns first."""

    def __init__(self, linear: nn.Module, order: torch.Tensor) -> None:
        """`order` is int32 [in_features], the input feature of each column of the weight."""
        super().__init__()
        self.linear = linear
        self.order = nn.Parameter(order, requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        ordered: torch.Tensor = self.linear(inputs.index_select(-1, self.order))
        return ordered
