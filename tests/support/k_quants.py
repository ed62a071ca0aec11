"""Simple quantisers of GGUF's types with blocks of 256 weights, which the gguf package can only read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def q4_k(values: Array) -> Array:
    """Blocks of a float16 scale and minimum, 12 bytes of scales of 8 groups, and 4 bits a weight."""
    head, levels = _grouped(values, 15)
    pairs = levels.reshape(-1, 4, 2, 32)
    return _rows(values, head, (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128))


def q5_k(values: Array) -> Array:
    """The form of Q4_K with the fifth bits in front: bit g of byte i is of weight i in group g."""
    head, levels = _grouped(values, 31)
    pairs = (levels & 15).reshape(-1, 4, 2, 32)
    high = np.zeros((len(levels), 32), dtype=np.uint8)
    for group in range(8):
        high |= (levels[:, group] >> 4) << group
    return _rows(values, head, high, (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128))


def q6_k(values: Array) -> Array:
    """Blocks of 6 bits a weight, low and high bits apart, 8-bit scales of 16 groups, and a float16 scale."""
    blocks = values.reshape(-1, 16, 16).astype(np.float32)
    largest = np.abs(blocks).max(axis=2) / 31
    scale = np.maximum(largest.max(axis=1) / 127, 1e-7).astype(np.float16)
    scales = np.clip(np.ceil(largest / scale.astype(np.float32)[:, None]), 1, 127).astype(np.int8)
    step = scale.astype(np.float32)[:, None, None] * scales[:, :, None]
    levels = (np.clip(np.round(blocks / step), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = levels & 15, levels >> 4
    low = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    high = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    parts = (low.reshape(-1, 128), high.reshape(-1, 64), scales.view(np.uint8), _half(scale))
    return _rows(values, *parts)


K_QUANTS: dict[str, Callable[[Array], Array]] = {"Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k}


def _grouped(values: Array, top: int) -> tuple[Array, Array]:
    """The first 16 bytes of each block, and the levels [blocks, 8, 32] of its weights."""
    blocks = values.reshape(-1, 8, 32).astype(np.float32)
    least = np.maximum(-blocks.min(axis=2), 0)
    span = (blocks.max(axis=2) + least) / top
    scale = np.maximum(span.max(axis=1) / 63, 1e-7).astype(np.float16)
    minimum = np.maximum(least.max(axis=1) / 63, 1e-7).astype(np.float16)
    scales = np.clip(np.ceil(span / scale.astype(np.float32)[:, None]), 1, 63).astype(np.uint8)
    minima = np.clip(np.round(least / minimum.astype(np.float32)[:, None]), 0, 63).astype(np.uint8)
    step = scale.astype(np.float32)[:, None] * scales
    offset = minimum.astype(np.float32)[:, None] * minima
    levels = np.clip(np.round((blocks + offset[:, :, None]) / step[:, :, None]), 0, top).astype(np.uint8)
    packed = np.concatenate(
        [
            scales[:, :4] | (scales[:, 4:] >> 4) << 6,
            minima[:, :4] | (minima[:, 4:] >> 4) << 6,
            (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4,
        ],
        axis=1,
    )
    return np.concatenate([_half(scale), _half(minimum), packed], axis=1), levels


def _half(values: Array) -> Array:
    return values.astype(np.float16).reshape(-1, 1).view(np.uint8)


def _rows(values: Array, *parts: Array) -> Array:
    stored = np.concatenate(parts, axis=1)
    return stored.reshape(*values.shape[:-1], values.shape[-1] // 256 * stored.shape[1])
