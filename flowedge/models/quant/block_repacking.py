"""Weights that a GGUF file stores in blocks, brought into the form of a product, not quantised again.

The integers stay as they are. The scales and zeros of int4 are rounded to bfloat16, which its kernels need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from flowedge.device.kernel_library import missing_reason
from flowedge.models.gguf.block_integers import LevelFormat, level_format
from flowedge.models.gguf.block_types import BLOCK_TYPES
from flowedge.models.kernels.linear import KernelLinear
from flowedge.models.kernels.packing import BITS, LANES, STEP, packed, packed_scales, padded_outputs
from flowedge.models.quant.backend import CHUNK_WEIGHTS, Tensors
from flowedge.models.quant.int4 import Int4, padded_shape

GROUP = 32  # weights that share a scale in the blocks that are repacked


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


def block_chunks(
    checkpoint: BlockSource, name: str, multiple: int = 1
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield (rows, their blocks [n, blocks of a row, bytes of a block]) in order.

    All chunks but the last have a multiple of `multiple` rows.
    """
    out_features, in_features = checkpoint.shape(name)
    size = BLOCK_TYPES[checkpoint.block_type(name)].block_bytes
    count = max(1, CHUNK_WEIGHTS // (in_features * multiple)) * multiple
    for start in range(0, out_features, count):
        rows = slice(start, min(start + count, out_features))
        blocks = checkpoint.block_rows(name, rows.start, rows.stop)
        yield rows, blocks.contiguous().view(len(blocks), -1, size)


def _int4(checkpoint: BlockSource, name: str) -> Tensors:
    """Integers of four bits with their scales and zeros."""
    unpack = _format_of(checkpoint, name).unpack
    out_features, in_features = checkpoint.shape(name)
    out, width, _ = padded_shape(out_features, in_features, GROUP)
    weight = torch.zeros((out, width // 2), dtype=torch.uint8)
    scales, zeros = torch.zeros((2, out, width // GROUP), dtype=torch.bfloat16)
    for rows, blocks in block_chunks(checkpoint, name):
        levels, scales[rows], zero = unpack(blocks)
        weight[rows] = levels[:, ::2] << 4 | levels[:, 1::2]
        if zero is not None:
            zeros[rows] = zero
    return {"weight": weight, "scale": scales, "zero": zeros}


def _w8a16(checkpoint: BlockSource, name: str) -> Tensors:
    """Q8_0 as it is: int8 [out, in], and a float16 scale for each group."""
    unpack = _format_of(checkpoint, name).unpack
    out_features, in_features = checkpoint.shape(name)
    weight = torch.empty((out_features, in_features), dtype=torch.int8)
    scale = torch.empty((out_features, in_features // GROUP), dtype=torch.float16)
    for rows, blocks in block_chunks(checkpoint, name):
        levels, scale[rows], _ = unpack(blocks)
        weight[rows] = (levels ^ 128).view(torch.int8)
    return {"weight": weight, "scale": scale}


_REPACK: dict[tuple[str, str], Callable[[BlockSource, str], Tensors]] = {
    ("Q4_0", "int4"): _int4,
    ("Q4_1", "int4"): _int4,
    ("Q4_K", "int4"): _int4,
    ("Q8_0", "w8a16"): _w8a16,
}


def is_held_as_stored(checkpoint: BlockSource, name: str, device: torch.device) -> bool:
    """Return whether `stored_linear` multiplies with a weight on a device: a CPU with the kernels."""
    return (
        level_format(checkpoint.block_type(name)) is not None
        and device.type == "cpu"
        and not missing_reason()
    )


def stored_linear(checkpoint: BlockSource, name: str, like: Any) -> KernelLinear:
    """The layer `like`, whose bias is loaded, over the integers of a tensor as the file has them."""
    form = _format_of(checkpoint, name)
    out, width = checkpoint.shape(name)
    kind, blocks_of_lanes = form.kind, padded_outputs(out) // LANES
    weight = torch.empty((blocks_of_lanes, width // STEP, BITS[kind], LANES, 4), dtype=torch.uint8)
    parts = 2 if form.has_zeros else 1
    scales = torch.empty((blocks_of_lanes, width // form.group, parts, LANES), dtype=form.scale_dtype)
    for rows, blocks in block_chunks(checkpoint, name, LANES):
        levels, *numbers = form.unpack(blocks)
        own = slice(rows.start // LANES, -(-rows.stop // LANES))
        weight[own] = packed(levels, kind)
        scales[own] = packed_scales(*(part.to(form.scale_dtype) for part in numbers if part is not None))
    return KernelLinear(like, weight, kind, scales=scales, group=form.group).eval()


def stored_bytes(checkpoint: BlockSource, name: str) -> int:
    """The bytes in memory of a weight as `stored_linear` holds it, scales included."""
    form = _format_of(checkpoint, name)
    out, width = checkpoint.shape(name)
    scales = width // form.group * (2 if form.has_zeros else 1) * form.scale_dtype.itemsize
    return padded_outputs(out) * (width * BITS[form.kind] // 8 + scales)


def _format_of(checkpoint: BlockSource, name: str) -> LevelFormat:
    form = level_format(checkpoint.block_type(name))
    assert form is not None, "the caller has asked whether there is one"
    return form
