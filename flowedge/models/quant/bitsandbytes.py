"""LLM.int8(), nf4 and fp4 by bitsandbytes. Encoded weights have the tensor names of its state_dict."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from flowedge.core.errors import CheckpointError
from flowedge.device.compute import NOT_INSTALLED
from flowedge.models.files.prequantised import StoredState, read_state
from flowedge.models.quant.backend import Tensors, WeightRows

BLOCK = 64  # 4-bit weights that share a scale
NESTED_BLOCK = 256  # scales that share a scale of their own, with double quantisation
_NESTED_CODE = 256  # values that a nested scale can have

# These warn of the cast to float16 in every int8 forward, and of an optional kernel at import.
_NOISY_LOGGERS = ("bitsandbytes.autograd._functions", "bitsandbytes.backends.cpu.ops")


def library() -> Any:
    """The bitsandbytes package, with its warnings turned off."""
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    import bitsandbytes  # noqa: PLC0415 (slow, warns at import, and absent from some devices)

    return bitsandbytes


def match_built_layers(module: nn.Module, dtype: torch.dtype) -> None:
    """Make layers that transformers loaded quantised compute in `dtype`, like layers of `Backend.build`."""
    bnb = library()
    for layer in module.modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            layer.support_avx512bf16_for_cpu = False
            layer.compute_dtype, layer.compute_type_is_set = dtype, True
            layer.weight.quant_state.dtype = dtype
        elif isinstance(layer, bnb.nn.Linear8bitLt):
            layer.state.threshold = 0.0


class _Bitsandbytes:
    @property
    def format(self) -> str:
        return f"bitsandbytes {version('bitsandbytes')}"

    def unavailable(self, device: torch.device) -> str | None:
        try:
            version("bitsandbytes")
        except PackageNotFoundError:
            return NOT_INSTALLED
        if device.type not in ("cpu", "cuda"):
            return "bitsandbytes runs on the CPU and on CUDA only"
        return None


class LlmInt8(_Bitsandbytes):
    """LLM.int8() with one scale a row and the outlier threshold 0.

    Above 0, the outliers of one input row would change the results of other rows.
    """

    name = "llm-int8"

    def encode(self, rows: WeightRows) -> Tensors:
        """Return `weight`, int8 [out, in], and `SCB`, float32 [out]."""
        bnb = library()
        weight = torch.empty((rows.out_features, rows.in_features), dtype=torch.int8)
        scales = torch.empty(rows.out_features, dtype=torch.float32)
        for start, chunk in rows.chunks():
            # bitsandbytes itself quantises from float16, whatever the weights are in.
            quantised, row_scales, _ = bnb.functional.int8_vectorwise_quant(chunk.half().contiguous())
            weight[start : start + len(chunk)] = quantised
            scales[start : start + len(chunk)] = row_scales
        return {"weight": weight, "SCB": scales}

    def build(self, tensors: Tensors, like: nn.Linear, dtype: torch.dtype, device: torch.device) -> nn.Module:  # noqa: ARG002
        bnb = library()
        weight, scales = tensors["weight"], tensors["SCB"]
        if weight.shape != (like.out_features, like.in_features) or weight.dtype != torch.int8:
            raise CheckpointError(
                f"an llm-int8 weight is {list(weight.shape)} of {weight.dtype}, the model asks for "
                f"{[like.out_features, like.in_features]} of torch.int8"
            )
        if scales.shape != (like.out_features,):
            raise CheckpointError(
                f"an llm-int8 weight of {like.out_features} rows has {scales.numel()} scales"
            )
        layer: nn.Module = bnb.nn.Linear8bitLt(
            like.in_features,
            like.out_features,
            bias=like.bias is not None,
            has_fp16_weights=False,
            threshold=0.0,
            device="meta",
        )
        weight = weight.to(device)
        layer.weight = bnb.nn.Int8Params(
            weight, requires_grad=False, has_fp16_weights=False, CB=weight, SCB=scales.float().to(device)
        )
        layer.bias = like.bias
        return layer.eval()  # in training mode the int8 product is not used

    def weight_bytes(self, out_features: int, in_features: int) -> int:
        return out_features * in_features + out_features * torch.float32.itemsize


class FourBit(_Bitsandbytes):
    """nf4 or fp4. With `double`, the scales are quantised too ("double quant")."""

    def __init__(self, quant_type: str, double: bool = False) -> None:
        self.name = quant_type + ("-dq" if double else "")
        self._type = quant_type
        self._double = double

    def encode(self, rows: WeightRows) -> Tensors:
        """Return `weight`, uint8 [bytes, 1], `weight.absmax`, a scale for every 64 weights, and others."""
        bnb = library()
        count = rows.out_features * rows.in_features
        weight = torch.empty(((count + 1) // 2, 1), dtype=torch.uint8)
        scales = torch.empty(-(-count // BLOCK), dtype=torch.float32)
        code = bnb.functional.get_4bit_type(self._type, device="cpu")
        # A block may hold weights of two rows, so a chunk has to end at a block's end.
        for start, chunk in rows.chunks(multiple=BLOCK):
            packed, state = bnb.functional.quantize_4bit(
                chunk.float().contiguous(), blocksize=BLOCK, quant_type=self._type
            )
            first = start * rows.in_features
            weight[first // 2 : first // 2 + len(packed)] = packed
            scales[first // BLOCK : first // BLOCK + len(state.absmax)] = state.absmax
        offset, second = None, None
        if self._double:
            offset = scales.mean()
            scales, second = bnb.functional.quantize_blockwise(scales - offset, blocksize=NESTED_BLOCK)
        state = bnb.functional.QuantState(
            absmax=scales,
            shape=torch.Size((rows.out_features, rows.in_features)),
            code=code,
            blocksize=BLOCK,
            quant_type=self._type,
            dtype=torch.float32,
            offset=offset,
            state2=second,
        )
        parts = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
        return {"weight": weight, **parts}

    def build(self, tensors: Tensors, like: nn.Linear, dtype: torch.dtype, device: torch.device) -> nn.Module:
        bnb = library()
        stored = read_state(tensors)
        self._check(tensors, stored, like)
        layer: Any = bnb.nn.Linear4bit(
            like.in_features,
            like.out_features,
            bias=like.bias is not None,
            compute_dtype=dtype,
            compress_statistics=self._double,
            quant_type=self._type,
            device="meta",
        )
        layer.quant_state = _library_state(bnb, tensors, stored, dtype, device)
        layer.weight = bnb.nn.Params4bit(
            tensors["weight"].view(torch.uint8).reshape(-1, 1).to(device),
            requires_grad=False,
            quant_state=layer.quant_state,
            blocksize=stored.blocksize,
            compress_statistics=self._double,
            quant_type=self._type,
            module=layer,
            bnb_quantized=True,
        )
        layer.bias = like.bias
        # On CPUs with AVX512-BF16 an evaluated layer repacks itself and multiplies in bfloat16 whatever
        # compute_dtype says. Training mode avoids that too, but the next .eval() of a parent would undo it.
        layer.support_avx512bf16_for_cpu = False
        evaluated: nn.Module = layer.eval()
        return evaluated

    def weight_bytes(self, out_features: int, in_features: int) -> int:
        count = out_features * in_features
        scales = -(-count // BLOCK)
        if not self._double:
            return (count + 1) // 2 + scales * torch.float32.itemsize
        return (count + 1) // 2 + scales + -(-scales // NESTED_BLOCK) * torch.float32.itemsize

    def _check(self, tensors: Tensors, stored: StoredState, like: nn.Linear) -> None:
        """Check all sizes: kernels trust them, and they may come from a file."""
        count = like.out_features * like.in_features
        scales = -(-count // stored.blocksize)
        wanted = {"weight": (count + 1) // 2, "weight.absmax": scales, "weight.quant_map": 16}
        if self._double:
            wanted["weight.nested_absmax"] = -(-scales // NESTED_BLOCK)
            wanted["weight.nested_quant_map"] = _NESTED_CODE

        # bitsandbytes may store packed weights in a wider dtype, so their bytes are compared.
        sizes = {name: tensors[name].nbytes if name == "weight" else tensors[name].numel() for name in wanted}
        if (
            sizes != wanted
            or stored.shape != (like.out_features, like.in_features)
            or stored.quant_type != self._type
            or (stored.nested_blocksize is not None) != self._double
            or stored.nested_blocksize not in (None, NESTED_BLOCK)
            or (tensors["weight.absmax"].dtype == torch.uint8) != self._double
        ):
            raise CheckpointError(
                f"a 4-bit weight is stored as {stored} with tensors of {sizes} elements; expected "
                f"{self.name} of shape {[like.out_features, like.in_features]}"
            )


def _library_state(
    bnb: Any, tensors: Tensors, stored: StoredState, dtype: torch.dtype, device: torch.device
) -> Any:
    state, offset, second = bnb.functional.QuantState, None, None
    if stored.nested_blocksize is not None:
        offset = torch.tensor(stored.nested_offset, device=device)
        second = state(
            absmax=tensors["weight.nested_absmax"].float().to(device),
            code=tensors["weight.nested_quant_map"].float().to(device),
            blocksize=stored.nested_blocksize,
            dtype=torch.float32,
        )
    return state(
        absmax=tensors["weight.absmax"].to(device),
        shape=torch.Size(stored.shape),
        code=tensors["weight.quant_map"].float().to(device),
        blocksize=stored.blocksize,
        quant_type=stored.quant_type,
        dtype=dtype,
        offset=offset,
        state2=second,
    )
