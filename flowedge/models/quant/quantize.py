"""Linear layers in 8 or 4 bits, replaced one at a time; the ways to do it are in `quant`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.registry import QUANTISATIONS, backend_of, check_available, check_quant

__all__ = [
    "QUANTISATIONS",
    "check_available",
    "check_quant",
    "linear_bytes",
    "module_bytes",
    "quantize_block",
    "quantize_linear",
]


Encode = Callable[[str, torch.Tensor], Tensors]
"""The quantised weight of a linear layer, given its path in the module that is quantised and its weight."""


def quantize_linear(
    linear: nn.Linear,
    quant: str,
    compute_dtype: torch.dtype | None = None,
    encode: Callable[[torch.Tensor], Tensors] | None = None,
) -> nn.Module:
    """The linear layer with its weight quantised, on the same device; the layer itself for "none".

    compute_dtype: the dtype 4-bit layers of bitsandbytes multiply in, the weight's own when not given.
    encode: gives the quantised weight; that of the quantisation when not given.
    BadRequestError when the quantisation does not exist or cannot be run on the device.
    """
    if check_quant(quant) == "none":
        return linear
    device = linear.weight.device
    check_available(quant, device)
    backend = backend_of(quant)
    encoded = backend.encode(WeightRows.of(linear.weight)) if encode is None else encode(linear.weight)
    return backend.build(encoded, linear, compute_dtype or linear.weight.dtype, device)


def quantize_block(
    module: nn.Module, quant: str, compute_dtype: torch.dtype | None = None, encode: Encode | None = None
) -> nn.Module:
    """Replaces every linear layer inside `module`, one after the other, and returns `module`."""
    if check_quant(quant) == "none":
        return module
    for path, child in list(module.named_modules()):
        if isinstance(child, nn.Linear):
            own = None if encode is None else partial(encode, path)
            module.set_submodule(path, quantize_linear(child, quant, compute_dtype, own))
    return module


def linear_bytes(out_features: int, in_features: int, quant: str, dtype: torch.dtype) -> int:
    """The bytes of a linear layer's weight after quantisation, scales included, bias not."""
    if check_quant(quant) == "none":
        return out_features * in_features * dtype.itemsize
    return backend_of(quant).weight_bytes(out_features, in_features)


def module_bytes(module: nn.Module) -> int:
    """The bytes that a module's weights hold in memory, quantisation scales included."""
    total = 0
    for parameter in module.parameters():
        total += parameter.nbytes
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            total += state.absmax.nbytes
            if state.state2 is not None:
                total += state.state2.absmax.nbytes
    for child in module.modules():
        scale = getattr(getattr(child, "state", None), "SCB", None)  # int8: there after the first forward
        if scale is None:
            scale = getattr(getattr(child, "weight", None), "SCB", None)  # int8: there before it
        if isinstance(scale, torch.Tensor):
            total += scale.nbytes
    return total
