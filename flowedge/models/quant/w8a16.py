"""Weight-only int8: integers of 8 bits that are multiplied with rows in floating point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import linear

from flowedge.core.errors import CheckpointError
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.hardware import Hardware, unpacked_rows

_LARGEST = 127

Int8Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(rows [n, in], weight int8 [out, in], scales [out, groups]) -> float32 [n, out]."""


@dataclass(frozen=True)
class Int8Kernel:
    """A product with int8 weights.

    Attributes:
        dtype: the dtype of rows in the product.
    """

    dtype: torch.dtype
    product: Int8Product


class W8A16:
    """Eight bits a weight, with a scale for each row or each group of a row, and rows in floating point."""

    name = "w8a16"
    format = "flowedge w8a16 1"

    def __init__(self, kernel: Int8Kernel | None = None) -> None:
        """`kernel` replaces the kernel that the table gives for a device."""
        self._kernel = kernel

    def unavailable(self, device: torch.device) -> str | None:
        return None if device.type in ("cpu", "cuda") else "w8a16 runs on the CPU and on CUDA only"

    def encode(self, rows: WeightRows) -> Tensors:
        """Return `weight`, int8 [out, in], and `scale`, float32 [out, 1]; a weight is their product."""
        weight = torch.empty((rows.out_features, rows.in_features), dtype=torch.int8)
        scale = torch.empty((rows.out_features, 1), dtype=torch.float32)
        for start, chunk in rows.chunks():
            stop, values = start + len(chunk), chunk.float()
            scale[start:stop] = values.abs().amax(1, keepdim=True) / _LARGEST
            steps = values / scale[start:stop].clamp(min=torch.finfo(torch.float32).tiny)
            weight[start:stop] = steps.round_().clamp_(-_LARGEST, _LARGEST)
        return {"weight": weight, "scale": scale}

    def build(self, tensors: Tensors, like: nn.Linear, dtype: torch.dtype, device: torch.device) -> nn.Module:  # noqa: ARG002
        weight, scale = tensors["weight"], tensors["scale"]
        out, width = like.out_features, like.in_features
        if weight.shape != (out, width) or weight.dtype != torch.int8:
            raise CheckpointError(
                f"a w8a16 weight is {list(weight.shape)} of {weight.dtype}, the model asks for "
                f"{[out, width]} of torch.int8"
            )
        groups = scale.shape[1] if scale.ndim == 2 and len(scale) == out else 0
        if not groups or width % groups or not scale.is_floating_point():
            raise CheckpointError(
                f"a w8a16 weight of {[out, width]} has scales {list(scale.shape)} of {scale.dtype}"
            )
        kernel = self._kernel or kernel_of(Hardware.of(device), groups)
        kind = W8A16Linear if groups == 1 else GroupedW8A16Linear
        return kind(like, kernel, weight.to(device), scale.to(device)).eval()

    def weight_bytes(
        self,
        out_features: int,
        in_features: int,
        group: int | None = None,
        scale_dtype: torch.dtype = torch.float32,
    ) -> int:
        """The bytes of an encoded weight in memory. Without `group` each row has one scale."""
        groups = 1 if group is None else in_features // group
        return out_features * in_features + out_features * groups * scale_dtype.itemsize


class W8A16Linear(nn.Module):
    """A linear layer over int8 weights with one scale a row."""

    def __init__(
        self, like: nn.Linear, kernel: Int8Kernel, weight: torch.Tensor, scale: torch.Tensor
    ) -> None:
        """`weight` is int8 [out, in]; `scale` is [out, groups]."""
        super().__init__()
        self.in_features = like.in_features
        self.out_features = like.out_features
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = like.bias
        self._kernel = kernel

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] in the dtype of the inputs [..., in_features]."""
        rows = inputs.reshape(-1, self.in_features).to(self._kernel.dtype).contiguous()
        output = self._kernel.product(rows, self.weight, self.scale).to(inputs.dtype)
        if self.bias is not None:
            output = output + self.bias
        return output.reshape(*inputs.shape[:-1], self.out_features)

    @staticmethod
    def joined(parts: Sequence[W8A16Linear]) -> W8A16Linear | None:
        """A layer of the same type whose result is the results of `parts` beside each other.

        Returns:
            None where the parts have different kernels or scales.
        """
        first = parts[0]
        if any(
            part._kernel is not first._kernel
            or part.scale.shape[1] != first.scale.shape[1]
            or part.scale.dtype != first.scale.dtype
            for part in parts
        ):
            return None
        out = sum(part.out_features for part in parts)
        like = nn.Linear(first.in_features, out, bias=False, device="meta")
        if first.bias is not None:
            like.bias = nn.Parameter(torch.cat([part.bias for part in parts]), requires_grad=False)
        weight, scale = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "scale"))
        return type(first)(like, first._kernel, weight, scale)


class GroupedW8A16Linear(W8A16Linear):
    """A linear layer with several scales a row: a type of its own, since its product is another one."""


def multiply_packed(rows: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """torch's product, in which each row is added up in one order whatever the other rows are."""
    ones = torch.ones(len(weight), dtype=rows.dtype, device=rows.device)
    products: torch.Tensor = torch.ops.aten._weight_int8pack_mm(rows, weight, ones)
    return products.float() * scales.float().t()


def multiply_unpacked(rows: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The product with weights that are expanded to the rows' dtype, a few rows of the weight at a time."""
    out, width = weight.shape
    result = rows.new_empty((len(rows), out))
    step = unpacked_rows(width, rows.device)
    for start in range(0, out, step):
        part = weight[start : start + step].to(rows.dtype)
        own = scales[start : start + step].to(rows.dtype)
        if own.shape[1] == 1:
            result[:, start : start + step] = linear(rows, part) * own.t()
            continue
        part.view(len(part), own.shape[1], -1).mul_(own.unsqueeze(2))
        result[:, start : start + step] = linear(rows, part)
    return result


X86 = Int8Kernel(torch.bfloat16, multiply_packed)
# torch's NEON product takes float32 as fast as bfloat16.
NEON = Int8Kernel(torch.float32, multiply_packed)
UNPACKED = Int8Kernel(torch.float32, multiply_unpacked)

# In order of preference; the last kernel alone takes weights with several scales a row.
KERNELS: tuple[tuple[Callable[[Hardware], bool], Int8Kernel], ...] = (
    (lambda hardware: hardware.is_x86_with_vectors, X86),
    (lambda hardware: hardware.is_arm64_cpu, NEON),
    (lambda _hardware: True, UNPACKED),
)


def kernel_of(hardware: Hardware, groups: int) -> Int8Kernel:
    """The first kernel of the table that runs on `hardware`, for weights with `groups` scales a row."""
    table = KERNELS if groups == 1 else KERNELS[-1:]
    return next(kernel for runs_on, kernel in table if runs_on(hardware))
