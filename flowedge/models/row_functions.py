"""Norms and activations of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from flowedge.models.families.parts import Activation, Clamp

_LEAST_OUTPUTS = 32
Call = Callable[[torch.Tensor], torch.Tensor]
Activate = Callable[[torch.Tensor], torch.Tensor]  # [..., n] -> [..., n]


class RmsNorm(nn.Module):
    """A norm with the operations, and so the bits, of transformers' norms; gradients pass through it."""

    def __init__(
        self, width: int, eps: float, *, plus_one: bool = False, in_float: bool = False, groups: int = 1
    ) -> None:
        """Norm rows of a width, or each of `groups` parts.

        plus_one, in_float: `norm_plus_one` and `norm_in_float` of Architecture.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.plus_one, self.in_float, self.groups = eps, plus_one, in_float, groups

    @property
    def factor(self) -> torch.Tensor | None:
        """The float32 factor of rows that are rounded behind the product; None where they are before."""
        if self.plus_one:
            return 1.0 + self.weight.float()
        return self.weight.float() if self.in_float else None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [..., width] for rows [..., width], in their dtype."""
        wide = rows.to(torch.float32).reshape(*rows.shape[:-1], self.groups, -1)
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).flatten(-2)
        factor = self.factor
        if factor is not None:
            return (normed * factor).to(rows.dtype)
        return self.weight * normed.to(rows.dtype)


class DecidingLinear(nn.Module):
    """A linear layer of a few outputs that decide over many numbers, which no quantisation rounds."""

    bias = None

    def __init__(self, width: int, outputs: int) -> None:
        """Make the layer, whose weight is not loaded."""
        super().__init__()
        self.in_features, self.out_features = width, outputs
        self.weight = nn.Parameter(torch.empty(outputs, width))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [..., outputs] for rows [..., width]."""
        return self.padded(rows)[..., : self.out_features]

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """Return `forward` with zeros behind the outputs.

        Products and functions of few numbers have other bits for other numbers of rows.
        """
        missing = -self.out_features % _LEAST_OUTPUTS
        return functional.linear(rows, functional.pad(self.weight, (0, 0, 0, missing)))


def norm_call(norm: RmsNorm) -> Call:
    """Return the norm of rows [..., width] with fewer and faster operations, for layers; no gradients."""
    return _norm_of([norm.weight if norm.factor is None else norm.factor], norm)


def head_norm_call(norms: Sequence[tuple[RmsNorm, int]]) -> Call:
    """Return norms of heads together, for [rows, heads, head_size]; each norm is of so many heads."""
    factors = [norm.weight if norm.factor is None else norm.factor for norm, _ in norms]
    of_heads = [factor.expand(count, -1) for factor, (_, count) in zip(factors, norms, strict=True)]
    return _norm_of(of_heads, norms[0][0])


def plain_norm_call(width: int, epsilon: float) -> Call:
    """Return a norm of rows [..., width] that has no weight."""
    return partial(_norm_without_weight, width, (epsilon, torch.full((1,), epsilon)))


def _norm_of(factors: Sequence[torch.Tensor], norm: RmsNorm) -> Call:
    factor = factors[0] if len(factors) == 1 else torch.cat(list(factors))
    width, eps = factor.shape[-1], (norm.eps, torch.full((1,), norm.eps))
    return partial(_norm if norm.factor is None else _norm_in_float, width, factor, eps)


def _norm(
    width: int, weight: torch.Tensor, eps: tuple[float, torch.Tensor], rows: torch.Tensor
) -> torch.Tensor:
    """Norm the last dimension, and round before the product with the weight."""
    if not rows.is_cpu:
        return torch.rms_norm(rows, (width,), None, eps[0]).mul_(weight)
    normed = _normed(width, eps, rows)
    return (normed if normed.dtype == rows.dtype else normed.to(rows.dtype)).mul_(weight)


def _norm_without_weight(width: int, eps: tuple[float, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Norm the last dimension."""
    return _normed(width, eps, rows).to(rows.dtype)


def _norm_in_float(
    width: int, factor: torch.Tensor, eps: tuple[float, torch.Tensor], rows: torch.Tensor
) -> torch.Tensor:
    """Norm the last dimension, and round after the product with the float32 factor."""
    normed = _normed(width, eps, rows).mul_(factor)
    return normed if normed.dtype == rows.dtype else normed.to(rows.dtype)


def _normed(width: int, eps: tuple[float, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Divide rows [..., width] by the roots of their mean squares; float32."""
    floats = rows if rows.dtype == torch.float32 else rows.float()
    if not rows.is_cpu:
        return torch.rms_norm(floats, (width,), None, eps[0])
    # torch's own norm is seven loops on CPUs, of which the mean alone takes as long as this length.
    length = torch.linalg.vector_norm(floats, 2, -1, True)
    return torch.mul(floats, torch.addcmul(eps[1], length, length, value=1 / width).rsqrt_())


_FUNCTIONS: dict[Activation, Activate] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu2": lambda values: functional.relu(values).square(),
}


def activation_of(name: Activation, clamp: Clamp | None = None) -> Activate:
    """Return the activation of gates: that of a name, or the one that `clamp` describes."""
    return _FUNCTIONS[name] if clamp is None else partial(_clamped, clamp)


def _clamped(clamp: Clamp, gates: torch.Tensor) -> torch.Tensor:
    gates = gates.clamp(max=clamp.limit)
    return gates * torch.sigmoid(gates * clamp.slope)
