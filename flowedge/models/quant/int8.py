"""Eight bits a weight, with a scale for each group of a row, and rows in eight bits on CPUs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import pad

from flowedge.core.errors import CheckpointError
from flowedge.device.kernel_library import missing_reason
from flowedge.models.kernels.linear import KernelLinear
from flowedge.models.kernels.packing import packed_int8, packed_scales, padded_outputs
from flowedge.models.kernels.structures import INT8
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.w8a16 import GroupedW8A16Linear, Int8Kernel, multiply_unpacked

GROUP = 128  # weights of a row that share a scale
SMALL_GROUP = 32  # the group size of rows whose length is no multiple of GROUP
_LARGEST = 127


def _multiply_padded(rows: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return multiply_unpacked(pad(rows, (0, weight.shape[1] - rows.shape[1])), weight, scales)


_UNPACKED = Int8Kernel(torch.float32, _multiply_padded)


def padded_width(in_features: int) -> tuple[int, int]:
    """The stored length of a row, which is a multiple of the group size, and the group size."""
    group = GROUP if in_features % GROUP == 0 else SMALL_GROUP
    return -(-in_features // group) * group, group


class Int8:
    """Weights of eight bits, multiplied with rows of eight bits that have a scale for each group as well.

    Where the compiled kernels do not run, the same weights are multiplied with rows in float32.
    """

    name = "int8"
    format = "flowedge int8 1"

    def unavailable(self, device: torch.device) -> str | None:
        return None if device.type in ("cpu", "cuda") else "int8 runs on the CPU and on CUDA only"

    def encode(self, rows: WeightRows) -> Tensors:
        """Return `weight`, int8 [out, width], and `scale`, bfloat16 [out, width / group]."""
        width, group = padded_width(rows.in_features)
        weight = torch.empty((rows.out_features, width), dtype=torch.int8)
        scales = torch.empty((rows.out_features, width // group), dtype=torch.bfloat16)
        for start, chunk in rows.chunks():
            stop = start + len(chunk)
            groups = pad(chunk.float(), (0, width - rows.in_features)).view(len(chunk), -1, group)
            # Weights are rounded with the rounded scale, which the product will use.
            scale = (groups.abs().amax(2) / _LARGEST).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16()
            levels = groups.div_(scale.float()[..., None]).round_().clamp_(-_LARGEST, _LARGEST)
            weight[start:stop], scales[start:stop] = levels.view(len(chunk), width), scale
        return {"weight": weight, "scale": scales}

    def build(self, tensors: Tensors, like: nn.Linear, dtype: torch.dtype, device: torch.device) -> nn.Module:  # noqa: ARG002
        weight, scale = tensors["weight"], tensors["scale"]
        width, group = padded_width(like.in_features)
        wanted = [[like.out_features, width], [like.out_features, width // group]]
        found = [list(weight.shape), list(scale.shape)]
        if found != wanted or weight.dtype != torch.int8 or not scale.is_floating_point():
            raise CheckpointError(
                f"an int8 weight of {like.out_features} x {like.in_features} has tensors of shapes {found} "
                f"of {weight.dtype} and {scale.dtype}; expected {wanted} of torch.int8 and floats"
            )
        if device.type == "cpu" and not missing_reason():
            packed, scales = packed_int8(weight), packed_scales(scale.bfloat16())
            return KernelLinear(like, packed, INT8, scales=scales, group=group, width=width).eval()
        return GroupedW8A16Linear(like, _UNPACKED, weight.to(device), scale.to(device)).eval()

    def weight_bytes(self, out_features: int, in_features: int) -> int:
        """The bytes of an encoded weight in memory, scales included."""
        width, group = padded_width(in_features)
        outputs = out_features if missing_reason() else padded_outputs(out_features)
        return outputs * (width + width // group * torch.bfloat16.itemsize)
