"""Tensors that are stored in blocks, which are read a few rows at a time and dequantised to float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from flowedge.models.files.weight_file import TensorReader, WeightSlice
from flowedge.models.gguf.block_types import BlockType

_PART_WEIGHTS = 1 << 20  # weights that are dequantised at once


@dataclass(frozen=True)
class BlockSlice:
    """One tensor of a file, stored in blocks of `kind`, which is read by indexing.

    Attributes:
        shape: the shape of the weights; a row is a whole number of blocks.
        offset: the position of the tensor's first byte in the file.
    """

    file: TensorReader
    name: str
    shape: tuple[int, ...]
    kind: BlockType
    offset: int

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights that are read."""
        return torch.float32

    @property
    def type_name(self) -> str:
        return self.kind.name

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes

    @property
    def blocks(self) -> WeightSlice:
        """The stored bytes, uint8 [..., bytes of a row]."""
        shape = (*self.shape[:-1], self.kind.row_bytes(self.shape[-1]))
        return WeightSlice(self.file, self.name, shape, torch.uint8, self.offset)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read the selected rows in float32; the index may not select within rows."""
        depth = len(index) if isinstance(index, tuple) else 1
        if index is not Ellipsis and depth >= len(self.shape):
            raise IndexError(f"the rows of {self.name} are read whole")
        return dequantise(self.blocks[index], self.kind)


def dequantise(blocks: torch.Tensor, kind: BlockType) -> torch.Tensor:
    """The float32 weights [..., columns] of blocks, uint8 [..., bytes of a row]."""
    rows = blocks.reshape(-1, blocks.shape[-1])
    columns = blocks.shape[-1] // kind.block_bytes * kind.weights
    weights = torch.empty((len(rows), columns), dtype=torch.float32)
    step = max(1, _PART_WEIGHTS // columns)
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged file may have infinite scales
        for start in range(0, len(rows), step):
            part = dequantize(rows[start : start + step].numpy(), GGMLQuantizationType[kind.name])
            weights[start : start + step] = torch.from_numpy(part)
    return weights.view(*blocks.shape[:-1], columns)
