"""Weights that a GGUF file stores in blocks, brought into the form of a quantisation without a second one.

The integers stay as they are. The scales and zeros of int4 are rounded to bfloat16, which its kernels need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from flowedge.models.gguf.block_types import BLOCK_TYPES
from flowedge.models.quant.backend import CHUNK_WEIGHTS, Tensors
from flowedge.models.quant.int4 import Int4, padded_shape

GROUP = 32  # weights that share a scale in the blocks that are repacked
_MIDDLE = 8  # the level of int4 that stands for the zero

Grouped = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Levels uint8 [n, columns], scales and zeros float32 [n, columns / 32]; see Int4.encode."""


class BlockSource(Protocol):
    """A model with tensors in GGUF's blocks, read some rows at a time; `Checkpoint` is one."""

    def block_type(self, name: str) -> str:
        """Return the type of a tensor's blocks, as "Q4_K"; "" for a tensor without blocks."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""

    def block_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Return rows [start, stop) of a tensor of blocks as it is stored: uint8 [rows, bytes]."""


def repack_blocks(checkpoint: BlockSource, name: str, quant: str) -> Tensors | None:
    """The encoded form of a weight whose stored integers `quant` can hold; None for other weights."""
    repack = _REPACK.get((checkpoint.block_type(name), quant))
    return None if repack is None else repack(checkpoint, name)


def can_repack(checkpoint: BlockSource, name: str, quant: str) -> bool:
    """Return whether `repack_blocks` has a form of a weight."""
    return (checkpoint.block_type(name), quant) in _REPACK


def repacked_block_bytes(checkpoint: BlockSource, name: str) -> int:
    """The bytes in memory of a weight that is repacked, scales included."""
    out_features, in_features = checkpoint.shape(name)
    if checkpoint.block_type(name) == "Q8_0":
        return out_features * (in_features + in_features // GROUP * torch.float16.itemsize)
    return Int4().weight_bytes(out_features, in_features, GROUP)


def _chunks(checkpoint: BlockSource, name: str) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield (rows, their blocks [n, blocks of a row, bytes of a block]) in order."""
    out_features, in_features = checkpoint.shape(name)
    size = BLOCK_TYPES[checkpoint.block_type(name)].block_bytes
    count = max(1, CHUNK_WEIGHTS // in_features)
    for start in range(0, out_features, count):
        rows = slice(start, min(start + count, out_features))
        blocks = checkpoint.block_rows(name, rows.start, rows.stop)
        yield rows, blocks.contiguous().view(len(blocks), -1, size)


def _int4(unpack: Callable[[torch.Tensor], Grouped]) -> Callable[[BlockSource, str], Tensors]:
    """The repacking of a block type whose blocks `unpack` takes apart."""

    def repack(checkpoint: BlockSource, name: str) -> Tensors:
        out_features, in_features = checkpoint.shape(name)
        out, width, _ = padded_shape(out_features, in_features, GROUP)
        weight = torch.zeros((out, width // 2), dtype=torch.uint8)
        scales, zeros = torch.zeros((2, out, width // GROUP), dtype=torch.bfloat16)
        for rows, blocks in _chunks(checkpoint, name):
            levels, scales[rows], zeros[rows] = unpack(blocks)
            weight[rows] = levels[:, ::2] << 4 | levels[:, 1::2]
        return {"weight": weight, "scale": scales, "zero": zeros}

    return repack


def _w8a16(checkpoint: BlockSource, name: str) -> Tensors:
    """Q8_0 as it is: int8 [out, in], and a float16 scale for each group."""
    out_features, in_features = checkpoint.shape(name)
    weight = torch.empty((out_features, in_features), dtype=torch.int8)
    scale = torch.empty((out_features, in_features // GROUP), dtype=torch.float16)
    for rows, blocks in _chunks(checkpoint, name):
        scale[rows] = _half(blocks[:, :, :2])[:, :, 0]
        weight[rows] = blocks[:, :, 2:].reshape(len(blocks), -1).view(torch.int8)
    return {"weight": weight, "scale": scale}


def _q4_0(blocks: torch.Tensor) -> Grouped:
    """A weight is (level - 8) * scale."""
    scale = _half(blocks[:, :, :2])[:, :, 0].float()
    return _nibbles(blocks[:, :, 2:], 16), scale, torch.zeros_like(scale)


def _q4_1(blocks: torch.Tensor) -> Grouped:
    """A weight is level * scale + minimum."""
    scale, minimum = _half(blocks[:, :, :4]).float().unbind(2)
    return _nibbles(blocks[:, :, 4:], 16), scale, minimum + _MIDDLE * scale


def _q4_k(blocks: torch.Tensor) -> Grouped:
    """A weight is level * scale - minimum, both of them a product of 6 bits and a float16 of the block."""
    step, minimum_step = _half(blocks[:, :, :4]).float().unbind(2)
    first, second, third = torch.tensor_split(blocks[:, :, 4:16], 3, dim=2)
    scale = torch.cat([first & 63, third & 15 | first >> 6 << 4], dim=2) * step[:, :, None]
    minimum = torch.cat([second & 63, third >> 4 | second >> 6 << 4], dim=2) * minimum_step[:, :, None]
    zero = _MIDDLE * scale - minimum
    return _nibbles(blocks[:, :, 16:], 32), scale.flatten(1), zero.flatten(1)


def _nibbles(packed: torch.Tensor, size: int) -> torch.Tensor:
    """The levels [n, columns]: of each `size` bytes the low halves come first, then the high halves."""
    bytes_ = packed.reshape(len(packed), -1, size)
    return torch.stack((bytes_ & 15, bytes_ >> 4), dim=2).view(len(packed), -1)


def _half(packed: torch.Tensor) -> torch.Tensor:
    """The float16 values in the bytes of the last axis."""
    return packed.contiguous().view(torch.float16)


_REPACK: dict[tuple[str, str], Callable[[BlockSource, str], Tensors]] = {
    ("Q4_0", "int4"): _int4(_q4_0),
    ("Q4_1", "int4"): _int4(_q4_1),
    ("Q4_K", "int4"): _int4(_q4_k),
    ("Q8_0", "w8a16"): _w8a16,
}
