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
    weight, shape = norm.weight, norm.weight.shape
    if form.norm_plus_one:
        return partial(_norm_plus_one, shape, 1.0 + weight.float(), form.norm_eps)
    return partial(_norm, shape, weight, form.norm_eps)


def head_norm_call(query_norm: Any, key_norm: Any, form: LayerForm) -> Call:
    """Return the norms of queries and keys together, for [rows, heads + kv_heads, head_size]."""
    weight = torch.cat((query_norm.weight.expand(form.heads, -1), key_norm.weight.expand(form.kv_heads, -1)))
    shape = weight.shape[1:]
    if form.norm_plus_one:
        return partial(_head_norm_plus_one, shape, 1.0 + weight.float(), form.norm_eps)
    return partial(_head_norm, shape, weight, form.norm_eps)


def _multiply(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.mm(rows, weight)


def _multiply_with_bias(bias: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, rows, weight)


def _norm(shape: torch.Size, weight: torch.Tensor, eps: float, rows: torch.Tensor) -> torch.Tensor:
    if rows.dtype == torch.float32:
        return torch.rms_norm(rows, shape, weight, eps)
    # torch would round after the product with the weight alone.
    return torch.rms_norm(rows, shape, None, eps).mul_(weight)


def _norm_plus_one(shape: torch.Size, factor: torch.Tensor, eps: float, rows: torch.Tensor) -> torch.Tensor:
    if rows.dtype == torch.float32:
        return torch.rms_norm(rows, shape, factor, eps)
    return torch.rms_norm(rows.float(), shape, factor, eps).to(rows.dtype)


def _head_norm(shape: torch.Size, weight: torch.Tensor, eps: float, heads: torch.Tensor) -> torch.Tensor:
    return torch.rms_norm(heads, shape, None, eps).mul_(weight)


def _head_norm_plus_one(
    shape: torch.Size, factor: torch.Tensor, eps: float, heads: torch.Tensor
) -> torch.Tensor:
    return torch.rms_norm(heads.float(), shape, None, eps).mul_(factor).to(heads.dtype)
