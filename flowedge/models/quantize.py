"""Linear layers in 8 or 4 bits, by bitsandbytes, replaced one at a time."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from flowedge.errors import BadRequestError

QUANTISATIONS = ("none", "int8", "nf4", "fp4")

# bitsandbytes warns of the cast to float16 in every int8 forward, and of an optional kernel at import.
_NOISY_LOGGERS = ("bitsandbytes.autograd._functions", "bitsandbytes.backends.cpu.ops")
_BLOCK_4BIT = 64  # weights that share one scale


def check_quant(quant: str) -> str:
    """Returns `quant` when it is one of QUANTISATIONS; BadRequestError lists them otherwise."""
    if quant not in QUANTISATIONS:
        raise BadRequestError(f"quantisation {quant!r} is not one of {', '.join(QUANTISATIONS)}")
    return quant


def quantize_linear(linear: nn.Linear, quant: str, compute_dtype: torch.dtype | None = None) -> nn.Module:
    """The linear layer with its weight quantised, on the same device; the layer itself for "none".

    compute_dtype: the dtype 4-bit layers multiply in, the weight's own when not given. int8 is LLM.int8()
    with the outlier threshold at 0, so that no row's outliers change how another row is computed.
    """
    if check_quant(quant) == "none":
        return linear
    device = linear.weight.device
    if quant == "int8":
        return _int8(linear).to(device)
    return _four_bit(linear, quant, compute_dtype or linear.weight.dtype).to(device)


def quantize_block(module: nn.Module, quant: str, compute_dtype: torch.dtype | None = None) -> nn.Module:
    """Replaces every linear layer inside `module`, one after the other, and returns `module`."""
    if check_quant(quant) == "none":
        return module
    for path, child in list(module.named_modules()):
        if isinstance(child, nn.Linear):
            module.set_submodule(path, quantize_linear(child, quant, compute_dtype))
    return module


def linear_bytes(out_features: int, in_features: int, quant: str, dtype: torch.dtype) -> int:
    """The bytes of a linear layer's weight after quantisation, scales included, bias not."""
    count = out_features * in_features
    if check_quant(quant) == "none":
        return count * dtype.itemsize
    if quant == "int8":
        return count + out_features * torch.float32.itemsize
    return (count + 1) // 2 + -(-count // _BLOCK_4BIT) * torch.float32.itemsize


def module_bytes(module: nn.Module) -> int:
    """The bytes that a module's weights hold in memory, quantisation scales included."""
    total = 0
    for parameter in module.parameters():
        total += parameter.numel() * parameter.itemsize
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            total += state.absmax.numel() * state.absmax.itemsize
    for child in module.modules():
        scale = getattr(getattr(child, "state", None), "SCB", None)  # int8: there after the first forward
        if scale is None:
            scale = getattr(getattr(child, "weight", None), "SCB", None)  # int8: there before it
        if isinstance(scale, torch.Tensor):
            total += scale.numel() * scale.itemsize
    return total


def _bitsandbytes() -> Any:
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    import bitsandbytes  # noqa: PLC0415 (slow to import, and needed by quantised models only)

    return bitsandbytes


def _int8(linear: nn.Linear) -> nn.Module:
    bnb = _bitsandbytes()
    layer: nn.Module = bnb.nn.Linear8bitLt(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        has_fp16_weights=False,
        threshold=0.0,
        device="meta",
    )
    weight = linear.weight.detach().cpu()  # it is quantised on its way from the CPU to the device
    layer.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    layer.bias = linear.bias
    return layer.eval()  # in training mode the int8 product is not used


def _four_bit(linear: nn.Linear, quant: str, compute_dtype: torch.dtype) -> nn.Module:
    bnb = _bitsandbytes()
    layer: Any = bnb.nn.Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        compute_dtype=compute_dtype,
        compress_statistics=False,
        quant_type=quant,
        device="meta",
    )
    layer.weight = bnb.nn.Params4bit(
        linear.weight.detach().cpu(),
        requires_grad=False,
        compress_statistics=False,
        quant_type=quant,
        blocksize=_BLOCK_4BIT,
        module=layer,
    )
    layer.bias = linear.bias
    # On CPUs with AVX512-BF16 an evaluated layer repacks itself and multiplies in bfloat16 whatever
    # compute_dtype says. Training mode avoids that too, but the next .eval() of a parent would undo it.
    layer.support_avx512bf16_for_cpu = False
    evaluated: nn.Module = layer.eval()
    return evaluated
