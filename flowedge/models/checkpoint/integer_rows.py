"""A weight that a quantiser stored as integers, read in floating point where its layer is not quantised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from flowedge.models.quant.packed_integers import IntegerFormat, IntegerWeight, RawTensors


@dataclass(frozen=True)
class IntegerRows:
    """A weight [out_features, in_features], which is read by slices of its rows.

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
