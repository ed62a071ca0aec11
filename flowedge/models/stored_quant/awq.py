"""AWQ's layout for its GEMM kernel: eight output features in a word, even features before odd features."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flowedge.models.stored_quant.integer_weight import IntegerShape, IntegerWeight, RawTensors
from flowedge.models.stored_quant.packed_integers import (
    SCALES,
    WORD_BITS,
    check_header,
    unpack,
    with_groups,
)

_BITS = 4
_PACKED = WORD_BITS // _BITS
_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # the place in the word of each of eight features


@dataclass(frozen=True)
class AWQ:
    """AWQ weights of 4 bits.

    Attributes:
        group: the config's group size; -1 for one scale a row.
    """

    group: int

    method = "AWQ"
    quant = "int4"

    def marker(self, layer: str) -> str:
        return f"{layer}qweight"

    def shape(self, layer: str, tensors: RawTensors) -> IntegerShape:
        (in_features, words), _ = check_header(tensors, f"{layer}qweight", (None, None), (torch.int32,))
        out_features = words * _PACKED
        (groups, _), dtype = check_header(tensors, f"{layer}scales", (None, out_features), SCALES)
        check_header(tensors, f"{layer}qzeros", (groups, words), (torch.int32,))
        announced = IntegerShape(_BITS, out_features, in_features, self.group, dtype, reordered=False)
        return with_groups(announced, f"{layer}scales", groups)

    def read(self, layer: str, tensors: RawTensors) -> IntegerWeight:
        shape = self.shape(layer, tensors)
        packed = tensors.raw(f"{layer}qweight")
        zeros = unpack(tensors.raw(f"{layer}qzeros"), _BITS, _NIBBLES)

        def levels(start: int, stop: int) -> torch.Tensor:
            first = start // _PACKED
            columns = unpack(packed[:, first : -(-stop // _PACKED)], _BITS, _NIBBLES)
            return columns[:, start - first * _PACKED : stop - first * _PACKED].t()

        return IntegerWeight(shape, levels, tensors.raw(f"{layer}scales").t(), zeros.t())
