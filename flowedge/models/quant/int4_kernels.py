"""The kernels that multiply with packed 4-bit weights, and the table that says which hardware uses which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import linear

from flowedge.models.quant.hardware import Hardware, unpacked_rows

_PACK_LEVELS = 1 << 20  # levels that are expanded to int32 at a time while a weight is packed
PACK_ROWS = 64  # rows that torch's CPU kernels pack as a unit, or a multiple of that unit
_HAS_CPU_PRODUCT = hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")  # torch 2.5 has none

Pack = Callable[[torch.Tensor, torch.device], torch.Tensor]
"""Levels in nibbles, uint8 [out, width / 2] on the CPU -> the kernel's layout on a device."""
Product = Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor], torch.Tensor]
"""(rows [n, width], packed weight, group size, scales and zeros [width / group, out, 2]) -> [n, out]."""


@dataclass(frozen=True)
class Int4Kernel:
    """A product with packed weights.

    Attributes:
        dtype: the dtype of rows, scales and zeros in the product.
    """

    name: str
    dtype: torch.dtype
    pack: Pack
    product: Product


def kernel_of(hardware: Hardware) -> Int4Kernel:
    """The first kernel of the table that runs on `hardware`."""
    return next(kernel for runs_on, kernel in KERNELS if runs_on(hardware))


def _pack_in_parts(weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The layout of this CPU's kernel, uint8 of the same size, made a few rows at a time out of int32."""
    packed = torch.empty_like(weight)
    rows = max(1, _PACK_LEVELS // weight.shape[1] // PACK_ROWS) * PACK_ROWS
    for start in range(0, len(weight), rows):
        part = weight[start : start + rows]
        levels = torch.stack((part >> 4, part & 15), dim=2).view(len(part), -1).int()
        packed[start : start + rows] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
    return packed.to(device)


def _pack_for_cuda(weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    """int32 [out / 8, in / (16 k), 32, k / 2] with the largest k of 8, 4 and 2 that the width allows."""
    tiles = next(tiles for tiles in (8, 4, 2) if 2 * weight.shape[1] % (16 * tiles) == 0)
    packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack(weight.to(device), tiles)
    return packed


def _keep_nibbles(weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    return weight.to(device, copy=True)


def _multiply(
    rows: torch.Tensor, packed: torch.Tensor, group: int, scales_and_zeros: torch.Tensor, *, name: str
) -> torch.Tensor:
    """The product of torch's operator `name`, which takes all operands but the weight in one dtype."""
    operator = getattr(torch.ops.aten, name)
    product: torch.Tensor = operator(rows, packed, group, scales_and_zeros.to(rows.dtype))
    return product


def _multiply_unpacked(
    rows: torch.Tensor, nibbles: torch.Tensor, group: int, scales_and_zeros: torch.Tensor
) -> torch.Tensor:
    """The product with weights that are expanded to the rows' dtype, a few rows of the weight at a time."""
    out, width = nibbles.shape[0], 2 * nibbles.shape[1]
    scales, zeros = scales_and_zeros.to(rows.dtype).permute(2, 1, 0).unsqueeze(3)
    result = rows.new_empty((len(rows), out))
    step = unpacked_rows(width, rows.device)
    weights = rows.new_empty((min(step, out), width // 2, 2))
    for start in range(0, out, step):
        part = nibbles[start : start + step]
        levels = weights[: len(part)]
        levels[..., 0] = part >> 4
        levels[..., 1] = part & 15
        grouped = levels.sub_(8).view(len(part), -1, group)
        grouped.mul_(scales[start : start + step]).add_(zeros[start : start + step])
        result[:, start : start + step] = linear(rows, levels.view(len(part), width))
    return result


_CPU_PRODUCT = partial(_multiply, name="_weight_int4pack_mm_for_cpu")

CUDA = Int4Kernel(
    "tinygemm on CUDA", torch.bfloat16, _pack_for_cuda, partial(_multiply, name="_weight_int4pack_mm")
)
X86 = Int4Kernel("tinygemm on AVX", torch.bfloat16, _pack_in_parts, _CPU_PRODUCT)
# The NEON kernel takes float32 as fast as bfloat16, to which it would truncate its results.
NEON = Int4Kernel("tinygemm on NEON", torch.float32, _pack_in_parts, _CPU_PRODUCT)
UNPACKED = Int4Kernel("unpacked in parts", torch.float32, _keep_nibbles, _multiply_unpacked)

# In order of preference. torch's CPU product on x86 is 30 times slower with other dtypes than bfloat16.
KERNELS: tuple[tuple[Callable[[Hardware], bool], Int4Kernel], ...] = (
    (lambda hardware: hardware.has_tensor_cores, CUDA),
    (lambda hardware: hardware.is_x86_with_vectors and _HAS_CPU_PRODUCT, X86),
    (lambda hardware: hardware.is_arm64_cpu and _HAS_CPU_PRODUCT, NEON),
    (lambda _hardware: True, UNPACKED),
)
