"""The packed weights of the kernels' integer products; flowedge/kernels/src/products.h says how they lie."""

from __future__ import annotations

import ctypes

import torch

from flowedge.device.kernel_library import library
from flowedge.models.kernels.structures import pointer

LANES = 16  # outputs of a block
GROUP_MULTIPLE = 32  # weights of a group are a multiple of this number


def padded_outputs(out_features: int) -> int:
    """The outputs of whole blocks."""
    return -(-out_features // LANES) * LANES


def packed_int8(weight: torch.Tensor) -> torch.Tensor:
    """Pack int8 [out, in] as uint8 [blocks, in / 4, LANES, 4]."""
    out, width = weight.shape
    packed = torch.empty((padded_outputs(out) // LANES, width // 4, LANES, 4), dtype=torch.uint8)
    library().flowedge_pack_int8(pointer(weight.contiguous()), *_sizes(out, width), pointer(packed))
    return packed


def packed_int4(nibbles: torch.Tensor) -> torch.Tensor:
    """Pack uint8 [out, in / 2], the even column in the high half, as uint8 [blocks, in / 8, LANES, 4]."""
    out, width = nibbles.shape[0], 2 * nibbles.shape[1]
    packed = torch.empty((padded_outputs(out) // LANES, width // 8, LANES, 4), dtype=torch.uint8)
    library().flowedge_pack_int4(pointer(nibbles.contiguous()), *_sizes(out, width), pointer(packed))
    return packed


def packed_scales(*parts: torch.Tensor) -> torch.Tensor:
    """Pack bfloat16 scales [out, groups], and zeros, as [blocks, groups, parts, LANES]."""
    out, groups = parts[0].shape
    packed = torch.zeros((padded_outputs(out), groups, len(parts)), dtype=torch.bfloat16)
    for index, part in enumerate(parts):
        packed[:out, :, index] = part
    return packed.view(-1, LANES, groups, len(parts)).permute(0, 2, 3, 1).contiguous()


def _sizes(*sizes: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(size) for size in sizes]
