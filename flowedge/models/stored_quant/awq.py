"""AWQ's layout for its GEMM kernel: eight output features in a word, even features before odd features."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flowedge.models.stored_quant.integer_weight import IntegerShape, IntegerWeight, RawTensors
from flowedge.models.stored_quant.packed_integers import WORD_BITS, check_header, group_size, unpack

_BITS = 4
_PACKED = WORD_BITS // _BITS
_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # the place in the word of each of eight features
_SCALES = (torch.float16, torch.bfloat16, torch.float32)


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
        (groups, _), dtype = check_header(tensors, f"{layer}scales", (None, out_features), _SCALES)
        check_header(tensors, f"{layer}qzeros", (groups, words), (torch.int32,))
        group = group_size(f"{layer}scales", in_features, groups, self.group)
        return IntegerShape(_BITS, out_features, in_features, group, dtype, reordered=False)

    def read(self, layer: str, tensors: RawTensors) -> IntegerWeight:
        shape = self.shape(layer, tensors)
        packed = tensors.raw(f"{layer}qweight")
        zeros = unpack(tensors.raw(f"{layer}qzeros"), _BITS, _NIBBLES)

        def levels(start: int, stop: int) -> torch.Tensor:
            first = start // _PACKED
            columns = unpack(packed[:, first : -(-stop // _PACKED)], _BITS, _NIBBLES)
            return columns[:, start - first * _PACKED : stop - first * _PACKED].t()

        return IntegerWeight(shape, levels, tensors.raw(f"{layer}scales").t(), zeros.t())
