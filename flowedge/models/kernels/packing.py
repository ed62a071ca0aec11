"""The packed weights of the kernels' integer products; flowedge/kernels/src/products.h says how they lie."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from flowedge.device.kernel_library import library
from flowedge.models.kernels.structures import INT4, INT5, INT6, INT8, IQ4, MXFP4, pointer

LANES = 16  # outputs of a block
CHUNK_BYTES = 4 << 20  # of an encoded weight that are packed at a time
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
    """Pack int8 [out, in] as the levels of INT8, in the memory of `weight` where its blocks are whole."""
    return _repacked(weight, INT8, lambda rows: rows ^ 128)


def packed_int4(nibbles: torch.Tensor) -> torch.Tensor:
    """Pack uint8 [out, in / 2], the even column in the high half, as the levels of INT4.

    The memory is that of `nibbles` where its blocks are whole.
    """
    return _repacked(
        nibbles, INT4, lambda rows: torch.stack((rows >> 4, rows & 15), dim=2).view(len(rows), -1)
    )


def _repacked(
    encoded: torch.Tensor, kind: int, levels: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Pack a matrix a few blocks at a time, so that no second copy of a large weight is made.

    The LANES rows of a block take the same bytes before and after.

    Args:
        encoded: any type of one byte, [out, in * BITS / 8].
        levels: uint8 rows of `encoded` -> a new tensor with their levels, uint8 [rows, in].
    """
    stored = encoded.contiguous().view(torch.uint8)
    out, row_bytes = stored.shape
    blocks = padded_outputs(out) // LANES
    shape = (blocks, row_bytes * 8 // BITS[kind] // STEP, BITS[kind], LANES, 4)
    to = stored.view(shape) if out % LANES == 0 else torch.empty(shape, dtype=torch.uint8)
    count = max(1, CHUNK_BYTES // (LANES * row_bytes))
    for first in range(0, blocks, count):
        rows = stored[first * LANES : (first + count) * LANES]
        to[first : first + count] = packed(levels(rows), kind)
    return to


def packed_scales(*parts: torch.Tensor) -> torch.Tensor:
    """Pack scales [out, groups] of 16 bits, and zeros, as [blocks, groups, parts, LANES]."""
    out, groups = parts[0].shape
    together = torch.zeros((padded_outputs(out), groups, len(parts)), dtype=parts[0].dtype)
    for index, part in enumerate(parts):
        together[:out, :, index] = part
    return together.view(-1, LANES, groups, len(parts)).permute(0, 2, 3, 1).contiguous()
