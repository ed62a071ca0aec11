"""GPTQ's layout: columns of `qweight` are output features, packed along the input features."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flowedge.models.stored_quant.integer_weight import IntegerShape, IntegerWeight, RawTensors
from flowedge.models.stored_quant.packed_integers import (
    SCALES,
    WORD_BITS,
    check_header,
    held_as,
    read_order,
    unpack,
    with_groups,
)


@dataclass(frozen=True)
class GPTQ:
    """GPTQ weights of 4 or 8 bits.

    Attributes:
        group: the config's group size; -1 for one scale a row.
        reordered: whether features were quantised in the order of their activations (`desc_act`).
        zero_offset: what has to be added to stored zeros; 1 in the first version of the format.
    """

    bits: int
    group: int
    reordered: bool
    zero_offset: int

    method = "GPTQ"

    @property
    def quant(self) -> str:
        return held_as(self.bits)

    def marker(self, layer: str) -> str:
        return f"{layer}qweight"

    def shape(self, layer: str, tensors: RawTensors) -> IntegerShape:
        packed = WORD_BITS // self.bits
        (words, out_features), _ = check_header(tensors, f"{layer}qweight", (None, None), (torch.int32,))
        in_features = words * packed
        (groups, _), dtype = check_header(tensors, f"{layer}scales", (None, out_features), SCALES)
        check_header(tensors, f"{layer}qzeros", (groups, -(-out_features // packed)), (torch.int32,))
        announced = IntegerShape(self.bits, out_features, in_features, self.group, dtype, self.reordered)
        return with_groups(announced, f"{layer}scales", groups)

    def read(self, layer: str, tensors: RawTensors) -> IntegerWeight:
        shape = self.shape(layer, tensors)
        order = read_order(f"{layer}g_idx", tensors, shape)
        packed = tensors.raw(f"{layer}qweight")
        stored = unpack(tensors.raw(f"{layer}qzeros"), self.bits)[:, : shape.out_features]
        zeros = stored + self.zero_offset & (1 << self.bits) - 1

        def levels(start: int, stop: int) -> torch.Tensor:
            rows = unpack(packed[:, start:stop].t(), self.bits)
            return rows if order is None else rows[:, order]

        return IntegerWeight(shape, levels, tensors.raw(f"{layer}scales").t(), zeros.t(), order)
