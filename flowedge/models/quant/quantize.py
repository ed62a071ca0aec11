"""The quantisations by name, and the replacement of linear layers by quantised layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from flowedge.core.errors import BadRequestError
from flowedge.models.quant.backend import Backend, Tensors, WeightRows
from flowedge.models.quant.bitsandbytes import FourBit, LlmInt8
from flowedge.models.quant.int4 import Int4
from flowedge.models.quant.int8 import Int8
from flowedge.models.quant.w8a16 import W8A16

_BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Int8(),
        LlmInt8(),
        FourBit("nf4"),
        FourBit("fp4"),
        FourBit("nf4", double=True),
        FourBit("fp4", double=True),
        Int4(),
        W8A16(),
    )
}
QUANTISATIONS = ("none", *_BACKENDS)

Encode = Callable[[str, torch.Tensor], Tensors]
"""(path of a linear layer in its module, the layer's weight) -> the quantised weight."""


def check_quant(quant: str) -> str:
    """Return `quant` if it is a quantisation.

    Raises:
        BadRequestError: when it is none of QUANTISATIONS.
    """
    if quant not in QUANTISATIONS:
        raise BadRequestError(f"quantisation {quant!r} is not one of {', '.join(QUANTISATIONS)}")
    return quant


def backend_of(quant: str) -> Backend:
    """The backend of a quantisation other than "none".

    Raises:
        BadRequestError: when there is no backend of this name.
    """
    if check_quant(quant) == "none":
        raise BadRequestError("layers that are not quantised have no quantisation backend")
    return _BACKENDS[quant]


def check_available(quant: str, device: torch.device) -> None:
    """Check that layers of a quantisation can run on `device`.

    Raises:
        BadRequestError: when they cannot; the message has the reason.
    """
    if check_quant(quant) == "none":
        return
    reason = _BACKENDS[quant].unavailable(device)
    if reason is not None:
        raise BadRequestError(f"quantisation {quant} is not available on {device}: {reason}")


def quantize_linear(
    linear: nn.Linear,
    quant: str,
    compute_dtype: torch.dtype | None = None,
    encode: Callable[[torch.Tensor], Tensors] | None = None,
) -> nn.Module:
    """Quantise the weight of a linear layer, on its device; for "none" return the layer itself.

    Args:
        compute_dtype: the dtype that 4-bit layers of bitsandbytes multiply in; by default the weight's.
        encode: weight -> quantised weight; by default the encoding of the quantisation.

    Raises:
        BadRequestError: when the quantisation does not exist or cannot run on the device.
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
    """Replace the linear layers inside `module` one after the other, and return `module`."""
    if check_quant(quant) == "none":
        return module
    for path, child in list(module.named_modules()):
        if isinstance(child, nn.Linear):
            own = None if encode is None else partial(encode, path)
            module.set_submodule(path, quantize_linear(child, quant, compute_dtype, own))
    return module


def linear_bytes(out_features: int, in_features: int, quant: str, dtype: torch.dtype) -> int:
    """The bytes of a linear layer's weight after quantisation, with scales and without bias."""
    if check_quant(quant) == "none":
        return out_features * in_features * dtype.itemsize
    return backend_of(quant).weight_bytes(out_features, in_features)


def module_bytes(module: nn.Module) -> int:
    """The bytes that a module's weights take in memory, quantisation scales included."""
    total = 0
    for parameter in module.parameters():
        total += parameter.nbytes
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            total += state.absmax.nbytes
            if state.state2 is not None:
                total += state.state2.absmax.nbytes
    for child in module.modules():
        # bitsandbytes moves the scales of an int8 layer from its weight to its state in the first forward.
        scale = getattr(getattr(child, "state", None), "SCB", None)
        if scale is None:
            scale = getattr(getattr(child, "weight", None), "SCB", None)
        if isinstance(scale, torch.Tensor):
            total += scale.nbytes
    return total
