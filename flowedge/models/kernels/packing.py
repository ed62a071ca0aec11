"""The packed weights of the kernels' integer products; flowedge/kernels/src/products.h says how they lie."""

from __future__ import annotations

import ctypes

import torch

from flowedge.device.kernel_library import library
from flowedge.models.kernels.structures import INT4, INT5, INT6, INT8, IQ4, MXFP4, pointer

LANES = 16  # outputs of a block
STEP = 32  # inputs whose levels lie together
BITS = {
    INT8: 8,
    INT4: 4,
    INT5: 5,
    INT6: 6,
    IQ4: 4,
    MXFP4: 4,
}  # stored; as many words of four bytes hold STEP inputs
# The levels of formats whose four bits are places in a table, around a middle of 0; MXFP4's are doubled.
TABLES = {
    IQ4: torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]),
    MXFP4: torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]),
}


def padded_outputs(out_features: int) -> int:
    """The outputs of whole blocks."""
    return -(-out_features // LANES) * LANES


def packed(levels: torch.Tensor, kind: int) -> torch.Tensor:
    """Pack uint8 [out, in] as uint8 [blocks, in / 32, words, LANES, 4]; `in` is a multiple of 32.

    kind: any format of integers; the levels begin at 0, and are places in the table of one that has a table.
    """
    out, width = levels.shape
    shape = (padded_outputs(out) // LANES, width // STEP, BITS[kind], LANES, 4)
    to = torch.empty(shape, dtype=torch.uint8)
    sizes = (ctypes.c_int64(out), ctypes.c_int64(width))
    library().flowedge_pack(
        INT4 if kind in TABLES else kind, pointer(levels.contiguous()), *sizes, pointer(to)
    )
    return to


def multiples(levels: torch.Tensor, kind: int) -> torch.Tensor:
    """What scales are multiplied with, float32: the levels around their middle, or those of a table."""
    table = TABLES.get(kind)
    return levels.float() - (1 << BITS[kind] - 1) if table is None else table[levels.int()].float()


def unpacked(words: torch.Tensor, kind: int) -> torch.Tensor:
    """The multiples float32 [n, in] of the words uint8 [n, in / 32, words, 4] of some outputs."""
    if kind == INT8:
        return multiples(words.flatten(1), kind)
    nibbles = words[:, :, :4]
    levels = torch.stack((nibbles & 15, nibbles >> 4), dim=3).flatten(2, 3)  # [n, in / 32, steps, 4]
    steps = torch.arange(STEP // 4, dtype=torch.uint8)[:, None]
    if kind == INT5:
        levels |= (words[:, :, 4:] >> steps & 1) << 4
    if kind == INT6:
        high = words[:, :, 4:].repeat_interleave(4, dim=2)
        levels |= (high >> steps % 4 * 2 & 3) << 4
    return multiples(levels.flatten(1), kind)


def packed_int8(weight: torch.Tensor) -> torch.Tensor:
    """Pack int8 [out, in] as the levels of INT8."""
    return packed(weight.contiguous().view(torch.uint8) ^ 128, INT8)


def packed_int4(nibbles: torch.Tensor) -> torch.Tensor:
    """Pack uint8 [out, in / 2], the even column in the high half, as the levels of INT4."""
    return packed(torch.stack((nibbles >> 4, nibbles & 15), dim=2).view(len(nibbles), -1), INT4)


def packed_scales(*parts: torch.Tensor) -> torch.Tensor:
    """Pack scales [out, groups] of 16 bits, and zeros, as [blocks, groups, parts, LANES]."""
    out, groups = parts[0].shape
    together = torch.zeros((padded_outputs(out), groups, len(parts)), dtype=parts[0].dtype)
    for index, part in enumerate(parts):
        together[:out, :, index] = part
    return together.view(-1, LANES, groups, len(parts)).permute(0, 2, 3, 1).contiguous()
