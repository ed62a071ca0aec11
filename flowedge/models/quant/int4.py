"""Weight-only int4 by torch's own kernels, which read packed weights for any number of rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import pad

from flowedge.core.errors import CheckpointError
from flowedge.device.kernel_library import missing_reason
from flowedge.models.kernels.linear import KernelLinear
from flowedge.models.kernels.packing import packed_int4, packed_scales
from flowedge.models.kernels.structures import INT4
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.hardware import Hardware
from flowedge.models.quant.int4_kernels import PACK_ROWS, Int4Kernel, kernel_of

GROUP = 64  # weights of a row that share a scale and a zero, where FlowEdge quantises
SMALL_GROUP = 32  # the group size of rows whose length is no multiple of GROUP
GROUPS = (32, 64, 128, 256)  # the group sizes that kernels take
OUT_MULTIPLE = 16  # the kernels take a multiple of this number of weight rows
_LEVELS = 16
_MIDDLE = _LEVELS // 2


def padded_shape(out_features: int, in_features: int, group: int | None = None) -> tuple[int, int, int]:
    """The stored sizes (out, in, group); a weight is padded to sizes that the kernels take.

    Without `group`, the group size is the size that FlowEdge quantises with.
    """
    if group is None:
        group = GROUP if in_features % GROUP == 0 else SMALL_GROUP
    return _round_up(out_features, OUT_MULTIPLE), _round_up(in_features, group), group


class Int4:
    """Four bits a weight, with a scale and a zero in bfloat16 for each group of a row."""

    name = "int4"
    format = "flowedge int4 1"

    def __init__(self, kernel: Int4Kernel | None = None) -> None:
        """`kernel` replaces the kernel that the table gives for a device."""
        self._kernel = kernel

    def unavailable(self, device: torch.device) -> str | None:
        return None if device.type in ("cpu", "cuda") else "int4 runs on the CPU and on CUDA only"

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
            zero = (low + scale.float() * _MIDDLE).bfloat16()
            levels = (groups - zero.float()[..., None]) / scale.float()[..., None] + _MIDDLE
            levels = levels.round_().clamp_(0, _LEVELS - 1).to(torch.uint8).view(len(chunk), width)
            weight[start:stop] = levels[:, ::2] << 4 | levels[:, 1::2]
            scales[start:stop], zeros[start:stop] = scale, zero
        return {"weight": weight, "scale": scales, "zero": zeros}

    def build(self, tensors: Tensors, like: nn.Linear, dtype: torch.dtype, device: torch.device) -> nn.Module:  # noqa: ARG002
        """Build a layer whose group size is one of GROUPS, as the shapes of the tensors tell.

        A `scale` or `zero` of a wider dtype is rounded to bfloat16 for every kernel, so that all devices have
        the same weights.
        """
        group = _check(tensors, like)
        if self._kernel is None and device.type == "cpu" and not missing_reason():
            packed = packed_int4(tensors["weight"])
            scales = packed_scales(tensors["scale"].bfloat16(), tensors["zero"].bfloat16())
            width = tensors["weight"].shape[1] * 2
            return KernelLinear(like, packed, INT4, scales=scales, group=group, width=width).eval()
        pairs = torch.stack((tensors["scale"], tensors["zero"]), dim=2).bfloat16()
        kernel = self._kernel or kernel_of(Hardware.of(device))
        packed = kernel.pack(tensors["weight"], device)
        return Int4Linear(like, kernel, packed, pairs.transpose(0, 1).contiguous().to(device), group).eval()

    def weight_bytes(self, out_features: int, in_features: int, group: int | None = None) -> int:
        """The bytes of an encoded weight in memory; `group` as in `padded_shape`."""
        out, width, group = padded_shape(out_features, in_features, group)
        return out * width // 2 + 2 * out * (width // group) * torch.bfloat16.itemsize


class Int4Linear(nn.Module):
    """A linear layer over packed weights, which multiplies in the dtype of its kernel and adds up in float32.

    With a kernel of torch, a row's result does not depend on the other rows, since the kernel adds up every
    row in the same order.
    """

    def __init__(
        self,
        like: nn.Linear,
        kernel: Int4Kernel,
        packed: torch.Tensor,
        scales_and_zeros: torch.Tensor,
        group: int,
    ) -> None:
        """Use a weight in the layout of `kernel`; `scales_and_zeros` is [width / group, out, 2]."""
        super().__init__()
        self.in_features = like.in_features
        self.out_features = like.out_features
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.scales_and_zeros = nn.Parameter(scales_and_zeros, requires_grad=False)
        self.bias = like.bias
        self._kernel = kernel
        self._group = group
        self._padding = len(scales_and_zeros) * group - like.in_features

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] in the dtype of the inputs [..., in_features]."""
        rows = inputs.reshape(-1, self.in_features).to(self._kernel.dtype)
        if self._padding:
            rows = pad(rows, (0, self._padding))
        products = self._kernel.product(rows.contiguous(), self.weight, self._group, self.scales_and_zeros)
        output = products[:, : self.out_features].to(inputs.dtype)
        if self.bias is not None:
            output = output + self.bias
        return output.reshape(*inputs.shape[:-1], self.out_features)

    @classmethod
    def joined(cls, parts: Sequence[Int4Linear]) -> Int4Linear | None:
        """A layer whose result is the results of `parts` beside each other; None where packing forbids it.

        Kernels pack PACK_ROWS weight rows as a unit, so only the last part may end within a unit.
        """
        first = parts[0]
        if any(part._kernel is not first._kernel or part._group != first._group for part in parts) or any(
            part.out_features % PACK_ROWS for part in parts[:-1]
        ):
            return None
        out = sum(part.out_features for part in parts)
        like = nn.Linear(first.in_features, out, bias=False, device="meta")
        if first.bias is not None:
            like.bias = nn.Parameter(torch.cat([part.bias for part in parts]), requires_grad=False)
        packed = torch.cat([part.weight for part in parts])
        pairs = torch.cat([part.scales_and_zeros for part in parts], dim=1)
        return cls(like, first._kernel, packed, pairs, first._group)


def _check(tensors: Tensors, like: nn.Linear) -> int:
    """Return the group size of an encoded weight after checking its sizes against the layer."""
    weight, scale, zero = tensors["weight"], tensors["scale"], tensors["zero"]
    found = [list(tensor.shape) for tensor in (weight, scale, zero)]
    width, groups = 2 * weight.shape[-1], max(1, scale.shape[-1])
    group = width // groups
    out, fitting, _ = padded_shape(like.out_features, like.in_features, max(1, group))
    wanted = [[out, fitting // 2], [out, groups], [out, groups]]
    if found != wanted or group not in GROUPS or weight.dtype != torch.uint8:
        raise CheckpointError(
            f"an int4 weight of {like.out_features} x {like.in_features} has tensors of shapes {found} with "
            f"{group} weights a group; expected {wanted} with {', '.join(map(str, GROUPS))} weights a group"
        )
    if not (scale.is_floating_point() and zero.is_floating_point()):
        raise CheckpointError(f"an int4 weight has scales of {scale.dtype} and zeros of {zero.dtype}")
    return group


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
