"""The integers that a GGUF file stores in blocks, and their scales, as products with integers take them.

A weight is a level's multiple (see models/kernels/packing.py) * scale + zero. The integers
stay as they are. Scales and zeros that the file has as a product of two numbers are rounded to 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from flowedge.models.kernels.structures import INT4, INT5, INT6, INT8, IQ4, MXFP4

Unpacked = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Levels uint8 [n, columns], scales and zeros float32 [n, columns / group]; no zeros where all are 0."""


@dataclass(frozen=True)
class LevelFormat:
    """How the weights of a type of blocks lie as integers.

    Attributes:
        kind: the kernels' format of the levels. group: weights of a row that share a scale.
        has_zeros: whether a zero is added. scale_dtype: that holds the scales, rounded as little as possible.
        unpack: takes blocks uint8 [n, blocks of a row, bytes of a block] apart.
    """

    kind: int
    group: int
    has_zeros: bool
    unpack: Callable[[torch.Tensor], Unpacked]
    scale_dtype: torch.dtype = torch.float16


def level_format(kind: str) -> LevelFormat | None:
    """Return the form of a block type, as "Q4_K"; None for a type whose weights are no such integers."""
    return _FORMATS.get(kind)


def _half(packed: torch.Tensor) -> torch.Tensor:
    """The float16 values in the bytes of the last axis, as float32."""
    return packed.contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, size: int) -> torch.Tensor:
    """The levels [n, columns]: of each `size` bytes the low halves come first, then the high halves."""
    bytes_ = packed.reshape(len(packed), -1, size)
    return torch.stack((bytes_ & 15, bytes_ >> 4), dim=2).view(len(packed), -1)


def _bits(packed: torch.Tensor) -> torch.Tensor:
    """The bits [n, 8 * bytes] of uint8 [n, ..., bytes], the least of each byte first."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (packed.reshape(len(packed), -1, 1) >> shifts & 1).flatten(1)


def _q4_0(blocks: torch.Tensor) -> Unpacked:
    return _nibbles(blocks[:, :, 2:], 16), _half(blocks[:, :, :2])[:, :, 0], None


def _q4_1(blocks: torch.Tensor) -> Unpacked:
    """A weight is level * scale + minimum."""
    scale, minimum = _half(blocks[:, :, :4]).unbind(2)
    return _nibbles(blocks[:, :, 4:], 16), scale, minimum + 8 * scale


def _q5_0(blocks: torch.Tensor) -> Unpacked:
    fifth = _bits(blocks[:, :, 2:6])
    return _nibbles(blocks[:, :, 6:], 16) | fifth << 4, _half(blocks[:, :, :2])[:, :, 0], None


def _q5_1(blocks: torch.Tensor) -> Unpacked:
    """A weight is level * scale + minimum."""
    scale, minimum = _half(blocks[:, :, :4]).unbind(2)
    return _nibbles(blocks[:, :, 8:], 16) | _bits(blocks[:, :, 4:8]) << 4, scale, minimum + 16 * scale


def _q8_0(blocks: torch.Tensor) -> Unpacked:
    levels = blocks[:, :, 2:].reshape(len(blocks), -1) ^ 128
    return levels, _half(blocks[:, :, :2])[:, :, 0], None


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of Q4_K and Q5_K: products of 6 bits with a float16 of the block, [n, groups]."""
    step, minimum_step = _half(blocks[:, :, :4]).unbind(2)
    first, second, third = torch.tensor_split(blocks[:, :, 4:16], 3, dim=2)
    scale = torch.cat([first & 63, third & 15 | first >> 6 << 4], dim=2) * step[:, :, None]
    minimum = torch.cat([second & 63, third >> 4 | second >> 6 << 4], dim=2) * minimum_step[:, :, None]
    return scale.flatten(1), minimum.flatten(1)


def _q4_k(blocks: torch.Tensor) -> Unpacked:
    """A weight is level * scale - minimum."""
    scale, minimum = _scales_and_minima(blocks)
    return _nibbles(blocks[:, :, 16:], 32), scale, 8 * scale - minimum


def _q5_k(blocks: torch.Tensor) -> Unpacked:
    """A weight is level * scale - minimum; bit i of 32 bytes is the fifth bit of the block's group i."""
    scale, minimum = _scales_and_minima(blocks)
    fifth = blocks[:, :, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1
    levels = _nibbles(blocks[:, :, 48:], 32) | fifth.reshape(len(blocks), -1) << 4
    return levels, scale, 16 * scale - minimum


def _q6_k(blocks: torch.Tensor) -> Unpacked:
    """Halves of 128 weights: four groups of 32 take their two high bits from the same 32 bytes."""
    size = blocks.shape[:2]
    low = blocks[:, :, :128].reshape(*size, 2, 2, 32)  # [n, blocks, half, part, 32]
    low = torch.stack((low & 15, low >> 4), dim=3).flatten(3, 4)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = blocks[:, :, 128:192].reshape(*size, 2, 1, 32) >> shifts & 3
    scale = blocks[:, :, 192:208].view(torch.int8).float() * _half(blocks[:, :, 208:])
    return (low | high << 4).reshape(len(blocks), -1), scale.flatten(1), None


def _iq4_nl(blocks: torch.Tensor) -> Unpacked:
    return _nibbles(blocks[:, :, 2:], 16), _half(blocks[:, :, :2])[:, :, 0], None


def _iq4_xs(blocks: torch.Tensor) -> Unpacked:
    """A scale is a product of 6 bits with the block's float16: 4 bits of a byte, and 2 bits of 16."""
    low = torch.stack((blocks[:, :, 4:8] & 15, blocks[:, :, 4:8] >> 4), dim=3).flatten(2)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)
    high = (blocks[:, :, 2:4, None] >> shifts & 3).flatten(2)
    scale = ((low | high << 4).float() - 32) * _half(blocks[:, :, :2])
    return _nibbles(blocks[:, :, 8:], 16), scale.flatten(1), None


def _mxfp4(blocks: torch.Tensor) -> Unpacked:
    """A scale is a power of two, half of it because the levels are doubled."""
    scale = torch.exp2(blocks[:, :, 0].double() - 128).float()
    return _nibbles(blocks[:, :, 1:], 16), scale, None


_FORMATS = {
    "Q4_0": LevelFormat(INT4, 32, False, _q4_0),
    "Q4_1": LevelFormat(INT4, 32, True, _q4_1),
    "Q5_0": LevelFormat(INT5, 32, False, _q5_0),
    "Q5_1": LevelFormat(INT5, 32, True, _q5_1),
    "Q8_0": LevelFormat(INT8, 32, False, _q8_0),
    "Q4_K": LevelFormat(INT4, 32, True, _q4_k),
    "Q5_K": LevelFormat(INT5, 32, True, _q5_k),
    "Q6_K": LevelFormat(INT6, 16, False, _q6_k),
    "IQ4_NL": LevelFormat(IQ4, 32, False, _iq4_nl),
    "IQ4_XS": LevelFormat(IQ4, 32, False, _iq4_xs),
    "MXFP4": LevelFormat(MXFP4, 32, False, _mxfp4, torch.bfloat16),
}
