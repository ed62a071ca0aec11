"""The tensor types of GGUF that store weights in blocks, and their sizes. Idle agents import this module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockType:
    """A tensor type that stores a row as blocks, each with scales of its own.

    Attributes:
        weights: the number of weights in a block.
        block_bytes: the bytes of a block.
    """

    name: str
    weights: int
    block_bytes: int

    def row_bytes(self, columns: int) -> int:
        """The bytes of a row of `columns` weights, which are a multiple of `weights`."""
        return columns // self.weights * self.block_bytes


BLOCK_TYPES = {
    kind.name: kind
    for kind in (
        BlockType("Q4_0", 32, 18),
        BlockType("Q4_1", 32, 20),
        BlockType("Q5_0", 32, 22),
        BlockType("Q5_1", 32, 24),
        BlockType("Q8_0", 32, 34),
        BlockType("Q2_K", 256, 84),
        BlockType("Q3_K", 256, 110),
        BlockType("Q4_K", 256, 144),
        BlockType("Q5_K", 256, 176),
        BlockType("Q6_K", 256, 210),
        BlockType("IQ1_S", 256, 50),
        BlockType("IQ1_M", 256, 56),
        BlockType("IQ2_XXS", 256, 66),
        BlockType("IQ2_XS", 256, 74),
        BlockType("IQ2_S", 256, 82),
        BlockType("IQ3_XXS", 256, 98),
        BlockType("IQ3_S", 256, 110),
        BlockType("IQ4_NL", 32, 18),
        BlockType("IQ4_XS", 256, 136),
        BlockType("MXFP4", 32, 17),
    )
}
FLOAT_TYPES = ("F32", "F16", "BF16")
