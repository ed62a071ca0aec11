"""The functions of tensors that modules stand for, without the search for attributes in every call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flowedge.models.lean.form import LayerForm, activation_name

Call = Callable[[torch.Tensor], torch.Tensor]


def product_call(module: nn.Module) -> Call:
    """Return the product of rows [n, in] with the bits of the module's; [n, out] is a new tensor."""
    if type(module) is not nn.Linear:
        return module
    weight = module.weight.t()
    if module.bias is None:
        return partial(_multiply, weight)
    return partial(_multiply_with_bias, module.bias, weight)


def activation_call(module: nn.Module) -> Call:
    """Return the activation as a function; of an aligned activation, the module itself."""
    if activation_name(module) == "silu" and not hasattr(module, "activation"):
        return functional.silu
    return module


def norm_call(norm: Any, form: LayerForm) -> Call:
    """Return the norm of rows [..., width], with the rounding of the family."""
    return _norm_of(norm.weight, form)


def head_norm_call(query_norm: Any, key_norm: Any, form: LayerForm) -> Call:
    """Return the norms of queries and keys together, for [rows, heads + kv_heads, head_size]."""
    weights = query_norm.weight.expand(form.heads, -1), key_norm.weight.expand(form.kv_heads, -1)
    return _norm_of(torch.cat(weights), form)


def _norm_of(weight: torch.Tensor, form: LayerForm) -> Call:
    width, eps = weight.shape[-1], (form.norm_eps, torch.full((1,), form.norm_eps))
    if form.norm_plus_one:
        return partial(_norm_plus_one, width, 1.0 + weight.float(), eps)
    return partial(_norm, width, weight, eps)


def _multiply(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.mm(rows, weight)


def _multiply_with_bias(bias: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, rows, weight)


def _norm(
    width: int, weight: torch.Tensor, eps: tuple[float, torch.Tensor], rows: torch.Tensor
) -> torch.Tensor:
    """Norm the last dimension, and round before the product with the weight."""
    if not rows.is_cpu:
        return torch.rms_norm(rows, (width,), None, eps[0]).mul_(weight)
    normed = _normed(width, eps, rows)
    return (normed if normed.dtype == rows.dtype else normed.to(rows.dtype)).mul_(weight)


def _norm_plus_one(
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
