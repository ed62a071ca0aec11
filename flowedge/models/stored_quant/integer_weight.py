"""A weight matrix of integers, as quantisers store it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch


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
