"""Weight-only int4 by torch's own kernels, which read packed weights for any number of rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import pad

from flowedge.core.errors import CheckpointError
from flowedge.models.quant.backend import Tensors, WeightRows

GROUP = 64  # weights of a row that share a scale and a zero
SMALL_GROUP = 32  # the group size of rows whose length is no multiple of GROUP
OUT_MULTIPLE = 16  # the kernels take a multiple of this number of weight rows
_LEVELS = 16
_CPU_PACK_ROWS = 64  # rows that torch packs as a unit
_CUDA_CAPABILITY = (8, 0)  # the kernel has bfloat16 tensor-core instructions
_CPU_KERNELS = ("AVX2", "AVX512")


def padded_shape(out_features: int, in_features: int) -> tuple[int, int, int]:
    """The stored sizes (out, in, group); a weight is padded with zeros to sizes that the kernels take."""
    group = GROUP if in_features % GROUP == 0 else SMALL_GROUP
    return _round_up(out_features, OUT_MULTIPLE), _round_up(in_features, group), group


class Int4:
    """Four bits a weight, with a scale and a zero in bfloat16 for each group of a row."""

    name = "int4"
    format = "flowedge int4 1"

    def unavailable(self, device: torch.device) -> str | None:
        if device.type == "cpu":
            found = torch.backends.cpu.get_cpu_capability()
            if found not in _CPU_KERNELS:
                return f"torch's int4 product needs AVX2 or AVX-512, this CPU has {found}; use nf4"
            return None
        if device.type == "cuda":
            capability = torch.cuda.get_device_capability(device)
            if capability < _CUDA_CAPABILITY:
                return f"it needs compute capability 8.0, and this GPU has {capability[0]}.{capability[1]}"
            return None
        return "torch's int4 product runs on the CPU and on CUDA only"

    def encode(self, rows: WeightRows) -> Tensors:
        """Return `weight`, `scale` and `zero`; a weight is (level - 8) * scale + zero.

        `weight` is uint8 [out, in / 2], with the levels of columns 2i and 2i + 1 in the high and low half of
        byte i. `scale` and `zero` are bfloat16 [out, in / group].
        """
        out, width, group = padded_shape(rows.out_features, rows.in_features)
        weight = torch.zeros((out, width // 2), dtype=torch.uint8)
        scales, zeros = torch.zeros((2, out, width // group), dtype=torch.bfloat16)
        for start, chunk in rows.chunks():
            stop = start + len(chunk)
            groups = pad(chunk.float(), (0, width - rows.in_features)).view(len(chunk), -1, group)
            low, high = groups.amin(2), groups.amax(2)
            # Levels are chosen with the rounded scale and zero, which the kernel will use.
            scale = ((high - low) / (_LEVELS - 1)).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16()
            zero = (low + scale.float() * (_LEVELS // 2)).bfloat16()
            levels = (groups - zero.float()[..., None]) / scale.float()[..., None] + _LEVELS // 2
            levels = levels.round_().clamp_(0, _LEVELS - 1).to(torch.uint8).view(len(chunk), width)
            weight[start:stop] = levels[:, ::2] << 4 | levels[:, 1::2]
            scales[start:stop], zeros[start:stop] = scale, zero
        return {"weight": weight, "scale": scales, "zero": zeros}

    def build(self, tensors: Tensors, like: nn.Linear, dtype: torch.dtype, device: torch.device) -> nn.Module:  # noqa: ARG002
        out, width, group = padded_shape(like.out_features, like.in_features)
        weight, scale, zero = tensors["weight"], tensors["scale"], tensors["zero"]
        found = [list(tensor.shape) for tensor in (weight, scale, zero)]
        wanted = [[out, width // 2], [out, width // group], [out, width // group]]
        if found != wanted:
            raise CheckpointError(f"an int4 weight has tensors of shapes {found}, not {wanted}")
        scales_and_zeros = torch.stack((scale, zero), dim=2).transpose(0, 1).contiguous()
        packed = _pack_for_cpu(weight) if device.type == "cpu" else _pack_for_cuda(weight.to(device), width)
        return Int4Linear(like, packed, scales_and_zeros.to(device), width, group).eval()

    def weight_bytes(self, out_features: int, in_features: int) -> int:
        out, width, group = padded_shape(out_features, in_features)
        return out * width // 2 + 2 * out * (width // group) * torch.bfloat16.itemsize


class Int4Linear(nn.Module):
    """A linear layer over packed weights, which multiplies in bfloat16 and adds up in float32.

    A row's result does not depend on the other rows, since the kernel adds up every row in the same order.
    """

    def __init__(
        self, like: nn.Linear, packed: torch.Tensor, scales_and_zeros: torch.Tensor, width: int, group: int
    ) -> None:
        """`packed` has the layout of its device's kernel; `scales_and_zeros` is [width / group, out, 2]."""
        super().__init__()
        self.in_features = like.in_features
        self.out_features = like.out_features
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.scales_and_zeros = nn.Parameter(scales_and_zeros, requires_grad=False)
        self.bias = like.bias
        self._padding = width - like.in_features
        self._group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] in the dtype of the inputs [..., in_features]."""
        rows = inputs.reshape(-1, self.in_features).to(torch.bfloat16)
        if self._padding:
            rows = pad(rows, (0, self._padding))
        product = (
            torch.ops.aten._weight_int4pack_mm_for_cpu
            if rows.device.type == "cpu"
            else torch.ops.aten._weight_int4pack_mm
        )
        products: torch.Tensor = product(rows.contiguous(), self.weight, self._group, self.scales_and_zeros)
        output = products[:, : self.out_features].to(inputs.dtype)
        if self.bias is not None:
            output = output + self.bias
        return output.reshape(*inputs.shape[:-1], self.out_features)


def _pack_for_cpu(weight: torch.Tensor) -> torch.Tensor:
    """The layout of this CPU's kernel, uint8 of the same size, made a few rows at a time out of int32."""
    packed = torch.empty_like(weight)
    rows = max(1, (1 << 20) // weight.shape[1] // _CPU_PACK_ROWS) * _CPU_PACK_ROWS
    for start in range(0, len(weight), rows):
        part = weight[start : start + rows]
        levels = torch.stack((part >> 4, part & 15), dim=2).view(len(part), -1).int()
        packed[start : start + rows] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
    return packed


def _pack_for_cuda(weight: torch.Tensor, width: int) -> torch.Tensor:
    """int32 [out / 8, in / (16 k), 32, k / 2] with the largest k of 8, 4 and 2 that the width allows."""
    tiles = next(tiles for tiles in (8, 4, 2) if width % (16 * tiles) == 0)
    packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack(weight, tiles)
    return packed


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
