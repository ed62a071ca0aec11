"""Small integers that are packed in int32, and checks of the tensors that hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch

from flowedge.core.errors import CheckpointError

WORD_BITS = 32
SCALES = (torch.float16, torch.bfloat16, torch.float32)  # dtypes of stored scales


def held_as(bits: int) -> str:
    """The quantisation in which weights of 4 or 8 bits are held."""
    return "int4" if bits == 4 else "w8a16"


def unpack(packed: torch.Tensor, bits: int, nibbles: Sequence[int] | None = None) -> torch.Tensor:
    """Unpack the last axis of int32 [..., n] to uint8 [..., n * 32 / bits].

    Args:
        bits: 4 or 8.
        nibbles: the place in the word of each of its values; by default the lowest bits hold the first.
    """
    values = packed.contiguous().view(torch.uint8)  # the lowest byte of a word first
    if bits == 4:
        values = torch.stack((values & 15, values >> 4), dim=-1).flatten(-2)
    if nibbles is None:
        return values
    by_word = values.reshape(*packed.shape, len(nibbles))
    return by_word[..., list(nibbles)].flatten(-2)


def check_header(
    tensors: RawTensors, name: str, shape: Sequence[int | None], dtypes: Sequence[torch.dtype]
) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of a tensor after a check; None in `shape` is any size but 0.

    Raises:
        CheckpointError: when the tensor is missing, or its shape or dtype is another one.
    """
    found, dtype = tensors.header(name)
    fits = len(found) == len(shape) and all(
        size == wanted if wanted is not None else size > 0 for size, wanted in zip(found, shape, strict=True)
    )
    if not fits or dtype not in dtypes:
        sizes = ["any size" if size is None else size for size in shape]
        raise CheckpointError(
            f"tensor {name} is {list(found)} of {dtype}; expected {sizes} of {' or '.join(map(str, dtypes))}"
        )
    return found, dtype


def with_groups(
    announced: IntegerShape, scales: str, groups: int, *, short_last: bool = False
) -> IntegerShape:
    """Return the shape of a weight whose rows have `groups` scales.

    Args:
        announced: the shape by the config: its `group` may be -1 for one scale a row, and `reordered` says
            whether groups of the checkpoint may be other than runs of neighbouring features.
        scales: the name of the tensor of scales.
        short_last: whether the last group of a row may be shorter than the others.

    Raises:
        CheckpointError: when scales and config do not agree on the size of a group.
    """
    features = announced.in_features
    group = features if announced.group == -1 else announced.group
    fits = -(-features // group) == groups if short_last else group * groups == features
    if not fits:
        raise CheckpointError(
            f"{scales} has {groups} scales a row for {features} weights, and the config says "
            f"groups of {group}"
        )
    return replace(announced, group=group, reordered=announced.reordered and groups > 1)


def read_order(name: str, tensors: RawTensors, shape: IntegerShape) -> torch.Tensor | None:
    """The input feature of each column when the columns of each group stand together.

    Args:
        name: a tensor with the group of each input feature, int32 [in_features], which only a weight that is
            reordered needs to have.

    Returns:
        int64 [in_features]; None unless the weight is reordered.

    Raises:
        CheckpointError: when the tensor is missing, a group has more or fewer features than the shape says,
            or features have an order that the config does not tell of.
    """
    if not shape.reordered and not tensors.has(name):
        return None
    check_header(tensors, name, (shape.in_features,), (torch.int32, torch.int64))
    groups = tensors.raw(name).long()
    runs = torch.arange(shape.in_features) // shape.group
    if bool((groups == -1).all()):  # compressed-tensors: the layer was not reordered after all
        groups = runs
    if not shape.reordered:
        if not torch.equal(groups, runs) and bool(groups.any()):
            raise CheckpointError(f"tensor {name} has an order of columns (desc_act) that the config denies")
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order], runs):
        raise CheckpointError(f"tensor {name} does not give {shape.group} input features to every group")
    return order


@dataclass(frozen=True)
class IntegerShape:
    """What a stored weight takes in memory depends on.

    Attributes:
        bits: 4 or 8.
        group: the weights of a row that share a scale and a zero; the last group of a row may be shorter.
        scale_dtype: the dtype of the stored scales.
        reordered: whether the weight's columns are stored with an order of their own.
    """

    bits: int
    out_features: int
    in_features: int
    group: int
    scale_dtype: torch.dtype
    reordered: bool

    @property
    def groups(self) -> int:
        return -(-self.in_features // self.group)


@dataclass(frozen=True)
class IntegerWeight:
    """A weight matrix of (level - zero) * scale, whose levels are read a few rows at a time.

    Attributes:
        levels: (start, stop) -> the levels of rows [start, stop), uint8 [stop - start, in_features]. Columns
            of one group are neighbours.
        scales: float [out_features, groups].
        zeros: uint8 [out_features, groups], the level that means zero.
        order: int64 [in_features], the input feature of each column; None where columns are in order.
    """

    shape: IntegerShape
    levels: Callable[[int, int], torch.Tensor]
    scales: torch.Tensor
    zeros: torch.Tensor
    order: torch.Tensor | None = None


class RawTensors(Protocol):
    """A checkpoint's tensors of any dtype, by the names of the family's modules."""

    def has(self, name: str) -> bool: ...

    def header(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """The shape and dtype of a tensor.

        Raises:
            CheckpointError: when the tensor is missing.
        """

    def raw(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Read a tensor, or some of its rows, on the CPU.

        Raises:
            CheckpointError: when the tensor is missing or cannot be read.
        """


class IntegerFormat(Protocol):
    """The layout of a quantiser's weights in a checkpoint.

    Attributes:
        method: the quantiser's name.
        quant: the quantisation of FlowEdge that holds these weights.
    """

    @property
    def method(self) -> str: ...

    @property
    def quant(self) -> str: ...

    def marker(self, layer: str) -> str:
        """The tensor that tells that a linear layer is quantised; `layer` is its name with the last dot."""

    def shape(self, layer: str, tensors: RawTensors) -> IntegerShape:
        """The shape of a layer's weight, from headers alone.

        Raises:
            CheckpointError: when the headers do not fit together.
        """

    def read(self, layer: str, tensors: RawTensors) -> IntegerWeight:
        """Read a layer's weight.

        Raises:
            CheckpointError: when the tensors do not fit together or cannot be read.
        """


@dataclass(frozen=True)
class IntegerRows:
    """A weight [out_features, in_features] that is read in floating point, by slices of its rows.

    It is for layers that no quantisation may round.

    Attributes:
        layer: the name of the linear layer, with the last dot.
    """

    form: IntegerFormat
    layer: str
    tensors: RawTensors

    @property
    def shape(self) -> tuple[int, int]:
        """Raises CheckpointError when the headers do not fit together."""
        shape = self.form.shape(self.layer, self.tensors)
        return shape.out_features, shape.in_features

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights that are read."""
        return torch.float32

    @property
    def type_name(self) -> str:
        """No type of GGUF."""
        return ""

    @property
    def blocks(self) -> IntegerRows:
        return self

    @cached_property
    def _weight(self) -> IntegerWeight:
        return self.form.read(self.layer, self.tensors)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read the rows of a slice, or with `...` all, in float32."""
        start, stop, _ = (slice(None) if index is ... else index).indices(self.shape[0])
        weight = self._weight
        zeros, scales = (
            part[start:stop].float().repeat_interleave(weight.shape.group, 1)[:, : weight.shape.in_features]
            for part in (weight.zeros, weight.scales)
        )
        values = (weight.levels(start, stop).float() - zeros) * scales
        return values if weight.order is None else values[:, torch.argsort(weight.order)]
