"""The norm of dense layers."""

from __future__ import annotations

import torch
from torch import nn


class DenseNorm(nn.Module):
    """A root-mean-square norm, computed in float32 and rounded before the product with the weight."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [..., hidden] for rows [..., hidden], in their dtype."""
        wide = rows.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + self.variance_epsilon)).to(rows.dtype)
