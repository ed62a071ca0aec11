"""Stacks of experts' weights that a checkpoint stores in MXFP4, read as the blocks of GGUF's MXFP4.

A checkpoint has the weights, two in a byte, and the exponents of groups of 32 weights in tensors of their
own (OCP Microscaling Formats 1.0, section 5). In GGUF a group is a block: its exponent, and 16 bytes in which
weights i and i + 16 share a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flowedge.core.errors import CheckpointError
from flowedge.models.files.weight_file import StoredSlice
from flowedge.models.gguf.block_slice import dequantise
from flowedge.models.gguf.block_types import BLOCK_TYPES

_KIND = BLOCK_TYPES["MXFP4"]
_HALF = _KIND.weights // 2


@dataclass(frozen=True)
class Mxfp4Stack:
    """A stack [experts, rows, columns] of weights, which is read by indexing.

    Attributes:
        packed: uint8 [experts, rows, groups, 16]; the low bits of a byte are the first of two weights.
        exponents: uint8 [experts, rows, groups], 127 for a factor of 1.
    """

    packed: StoredSlice | torch.Tensor
    exponents: StoredSlice | torch.Tensor

    def __post_init__(self) -> None:
        """Raise CheckpointError for tensors that do not fit together."""
        packed, exponents = tuple(self.packed.shape), tuple(self.exponents.shape)
        if len(packed) != 4 or packed[3] != _HALF or packed[:3] != exponents:
            raise CheckpointError(
                f"blocks of MXFP4 of shape {list(packed)} have exponents of shape {list(exponents)}"
            )
        if {self.packed.dtype, self.exponents.dtype} != {torch.uint8}:
            raise CheckpointError(
                f"blocks of MXFP4 have types {self.packed.dtype} and {self.exponents.dtype}, not bytes"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        experts, rows, groups, _ = self.packed.shape
        return experts, rows, groups * _KIND.weights

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights that are read."""
        return torch.float32

    @property
    def type_name(self) -> str:
        return _KIND.name

    @property
    def blocks(self) -> Mxfp4Blocks:
        return Mxfp4Blocks(self.packed, self.exponents)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read the selected rows in float32; the index may not select within rows."""
        return dequantise(self.blocks[index], _KIND)


@dataclass(frozen=True)
class Mxfp4Blocks:
    """The blocks of a stack, uint8 [experts, rows, bytes of a row]; attributes as of Mxfp4Stack."""

    packed: StoredSlice | torch.Tensor
    exponents: StoredSlice | torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        experts, rows, groups, _ = self.packed.shape
        return experts, rows, groups * _KIND.block_bytes

    def __getitem__(self, index: Any) -> torch.Tensor:
        packed, exponents = self.packed[index], self.exponents[index]
        weights = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
        halves = weights[..., :_HALF] | weights[..., _HALF:] << 4
        return torch.cat((exponents[..., None], halves), -1).flatten(-2)
