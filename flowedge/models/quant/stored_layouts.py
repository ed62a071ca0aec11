"""How AWQ, GPTQ and compressed-tensors lay out a weight of small integers in a checkpoint.

AWQ's GEMM kernel packs eight output features in a word, the even ones before the odd ones. GPTQ's
`qweight` has output features as columns, packed along the input features. compressed-tensors has
`pack-quantized`, packed along the input features, and plain int8.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flowedge.core.errors import CheckpointError
from flowedge.models.quant.packed_integers import (
    SCALES,
    WORD_BITS,
    IntegerShape,
    IntegerWeight,
    RawTensors,
    check_header,
    held_as,
    read_order,
    unpack,
    with_groups,
)

_AWQ_BITS = 4
_AWQ_PACKED = WORD_BITS // _AWQ_BITS
_AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # the place in the word of each of eight features


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
        out_features = words * _AWQ_PACKED
        (groups, _), dtype = check_header(tensors, f"{layer}scales", (None, out_features), SCALES)
        check_header(tensors, f"{layer}qzeros", (groups, words), (torch.int32,))
        announced = IntegerShape(_AWQ_BITS, out_features, in_features, self.group, dtype, reordered=False)
        return with_groups(announced, f"{layer}scales", groups)

    def read(self, layer: str, tensors: RawTensors) -> IntegerWeight:
        shape = self.shape(layer, tensors)
        packed = tensors.raw(f"{layer}qweight")
        zeros = unpack(tensors.raw(f"{layer}qzeros"), _AWQ_BITS, _AWQ_NIBBLES)

        def unpacked(start: int, stop: int) -> torch.Tensor:
            first = start // _AWQ_PACKED
            columns = unpack(packed[:, first : -(-stop // _AWQ_PACKED)], _AWQ_BITS, _AWQ_NIBBLES)
            return columns[:, start - first * _AWQ_PACKED : stop - first * _AWQ_PACKED].t()

        return IntegerWeight(shape, unpacked, tensors.raw(f"{layer}scales").t(), zeros.t())


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
        # No product takes uneven groups of 8 bits.
        return with_groups(announced, f"{layer}scales", groups, short_last=self.bits == 4)

    def read(self, layer: str, tensors: RawTensors) -> IntegerWeight:
        shape = self.shape(layer, tensors)
        order = read_order(f"{layer}g_idx", tensors, shape)
        packed = tensors.raw(f"{layer}qweight")
        stored = unpack(tensors.raw(f"{layer}qzeros"), self.bits)[:, : shape.out_features]
        zeros = stored + self.zero_offset & (1 << self.bits) - 1

        def unpacked(start: int, stop: int) -> torch.Tensor:
            rows = unpack(packed[:, start:stop].t(), self.bits)
            return rows if order is None else rows[:, order]

        return IntegerWeight(shape, unpacked, tensors.raw(f"{layer}scales").t(), zeros.t(), order)


@dataclass(frozen=True)
class CompressedTensors:
    """Weights of compressed-tensors of 4 or 8 bits.

    Attributes:
        packed: whether weights are packed in int32 (`pack-quantized`) or are int8 (`int-quantized`).
        group: the config's group size; -1 for one scale a row.
        symmetric: whether the middle level means zero everywhere, so that no zeros are stored.
        reordered: whether groups are not runs of neighbouring features (`actorder: group`).
    """

    bits: int
    packed: bool
    group: int
    symmetric: bool
    reordered: bool

    method = "compressed-tensors"

    @property
    def quant(self) -> str:
        return held_as(self.bits)

    def marker(self, layer: str) -> str:
        return f"{layer}weight_packed" if self.packed else f"{layer}weight_scale"

    def shape(self, layer: str, tensors: RawTensors) -> IntegerShape:
        if self.packed:
            name, dtype, packed = f"{layer}weight_packed", torch.int32, WORD_BITS // self.bits
        else:
            name, dtype, packed = f"{layer}weight", torch.int8, 1
        (out_features, words), _ = check_header(tensors, name, (None, None), (dtype,))
        (_, groups), scale_dtype = check_header(tensors, f"{layer}weight_scale", (out_features, None), SCALES)
        # Words are padded, and so are groups; a row that is no whole number of groups is one of words.
        stored = words * packed
        in_features = stored if self.group == -1 or groups * self.group > stored else groups * self.group
        if -(-in_features // packed) != words:
            raise CheckpointError(
                f"tensor {name} holds {words * packed} weights a row, and there are scales for {in_features}"
            )
        announced = IntegerShape(
            self.bits, out_features, in_features, self.group, scale_dtype, self.reordered
        )
        # No product takes uneven groups of 8 bits.
        return with_groups(announced, f"{layer}weight_scale", groups, short_last=self.bits == 4)

    def read(self, layer: str, tensors: RawTensors) -> IntegerWeight:
        shape = self.shape(layer, tensors)
        self._check_stored_shape(layer, shape, tensors)
        order = read_order(f"{layer}weight_g_idx", tensors, shape)

        def unpacked(start: int, stop: int) -> torch.Tensor:
            rows = self._unpacked(layer, tensors, slice(start, stop))[:, : shape.in_features]
            return rows if order is None else rows[:, order]

        scales = tensors.raw(f"{layer}weight_scale")
        return IntegerWeight(shape, unpacked, scales, self._zeros(layer, shape, tensors), order)

    @property
    def _middle(self) -> int:
        return 1 << self.bits - 1

    def _unpacked(self, layer: str, tensors: RawTensors, rows: slice) -> torch.Tensor:
        if self.packed:
            return unpack(tensors.raw(f"{layer}weight_packed", rows), self.bits)
        return self._shifted(f"{layer}weight", tensors.raw(f"{layer}weight", rows))

    def _shifted(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Levels from 0 on, for signed values."""
        unpacked = values.short() + self._middle
        if int(unpacked.min()) < 0 or int(unpacked.max()) >= 2 * self._middle:
            raise CheckpointError(f"tensor {name} has a value that {self.bits} bits cannot hold")
        return unpacked.to(torch.uint8)

    def _zeros(self, layer: str, shape: IntegerShape, tensors: RawTensors) -> torch.Tensor:
        """uint8 [out_features, groups]. Zeros of packed weights are packed along the output features."""
        name, wanted = f"{layer}weight_zero_point", (shape.out_features, shape.groups)
        if self.symmetric:
            return torch.full(wanted, self._middle, dtype=torch.uint8)
        _, dtype = tensors.header(name)
        if self.packed and dtype == torch.int32:
            words = -(-shape.out_features * self.bits // WORD_BITS)
            check_header(tensors, name, (words, shape.groups), (torch.int32,))
            return unpack(tensors.raw(name).t(), self.bits)[:, : shape.out_features].t()
        check_header(tensors, name, wanted, (torch.int8,))
        return self._shifted(name, tensors.raw(name))

    def _check_stored_shape(self, layer: str, shape: IntegerShape, tensors: RawTensors) -> None:
        name, expected = f"{layer}weight_shape", [shape.out_features, shape.in_features]
        if not self.packed:
            return
        check_header(tensors, name, (2,), (torch.int64, torch.int32))
        of_both = [2 * shape.out_features, shape.in_features]  # of an MLP's gate and values in one matrix
        if (found := tensors.raw(name).tolist()) not in (expected, of_both):
            raise CheckpointError(f"tensor {name} says {found}, and the packed weight holds {expected}")
