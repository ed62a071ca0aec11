"""The interface of a quantisation of linear layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from flowedge.core.errors import CheckpointError

CHUNK_WEIGHTS = 1 << 20  # weights in full precision at a time; quantising takes about 20 bytes for each

Tensors = dict[str, torch.Tensor]  # the encoded form of a quantised weight: CPU tensors by name


def check_finite(rows: torch.Tensor, name: str) -> None:
    """Check that a weight can be quantised.

    Args:
        rows: some of its rows, on the CPU; name: of the weight, for messages.

    Raises:
        CheckpointError: when a value is not finite: quantised, it would be a number like any other.
    """
    # NaN is the least and the greatest of any values. To ask each value takes torch 20 times as long.
    if rows.numel() and not torch.stack(rows.aminmax()).isfinite().all():
        raise CheckpointError(
            f"{name} has values that are not finite (NaN or infinity) in {rows.dtype}, and cannot be "
            "quantised; the file is damaged: download the model again"
        )


@dataclass(frozen=True)
class WeightRows:
    """A weight matrix [out_features, in_features] that is read a few rows at a time.

    Attributes:
        read: (start, stop) -> the rows [stop - start, in_features] in a float dtype on the CPU.
        name: for messages.
    """

    out_features: int
    in_features: int
    read: Callable[[int, int], torch.Tensor]
    name: str = "a weight"

    @classmethod
    def of(cls, weight: torch.Tensor, name: str = name) -> WeightRows:
        weight = weight.detach()
        return cls(weight.shape[0], weight.shape[1], lambda start, stop: weight[start:stop].cpu(), name)

    def chunks(self, multiple: int = 1) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (first row, rows) in order; all chunks but the last have a multiple of `multiple` rows.

        Raises:
            CheckpointError: when a value is not finite.
        """
        rows = max(1, CHUNK_WEIGHTS // max(1, self.in_features * multiple)) * multiple
        for start in range(0, self.out_features, rows):
            chunk = self.read(start, min(start + rows, self.out_features))
            check_finite(chunk, self.name)
            yield start, chunk


class Backend(Protocol):
    """A quantisation of linear layers, without state.

    A weight is encoded on the CPU for any device, so that all devices have the same quantised weights.

    Attributes:
        name: the name in `--quant`.
        format: the library and version, or whatever else the values of encoded tensors depend on.
    """

    name: str

    @property
    def format(self) -> str: ...

    def unavailable(self, device: torch.device) -> str | None:
        """The reason why quantised layers cannot run on `device`; None when they can."""

    def encode(self, rows: WeightRows) -> Tensors:
        """Quantise a weight, with only a few rows in full precision at a time."""

    def build(self, tensors: Tensors, like: nn.Linear, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """A layer that multiplies with an encoded weight, whose tensors it uses up: their values may change.

        Args:
            like: a layer with the same sizes, and the bias on `device`.
            dtype: the dtype of input and output rows.

        Raises:
            CheckpointError: when the tensors do not fit together or do not fit the layer.
        """

    def weight_bytes(self, out_features: int, in_features: int) -> int:
        """The bytes of an encoded weight in memory, scales included."""
