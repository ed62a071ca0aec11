"""What a way to quantise linear layers has to offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

CHUNK_WEIGHTS = 1 << 20  # that are in full precision at a time; quantising takes about 20 bytes for each

Tensors = dict[str, torch.Tensor]  # a quantised weight as plain tensors on the CPU, by name


@dataclass(frozen=True)
class WeightRows:
    """A weight matrix [out_features, in_features] that is read a few rows at a time.

    Attributes:
        read: (start, stop) -> float rows [stop - start, in_features] on the CPU.
    """

    out_features: int
    in_features: int
    read: Callable[[int, int], torch.Tensor]

    @classmethod
    def of(cls, weight: torch.Tensor) -> WeightRows:
        """Those of a matrix in memory."""
        weight = weight.detach()
        return cls(weight.shape[0], weight.shape[1], lambda start, stop: weight[start:stop].cpu())

    def chunks(self, multiple: int = 1) -> Iterator[tuple[int, torch.Tensor]]:
        """(first row, rows) in order; every chunk but the last has a multiple of `multiple` rows."""
        rows = max(1, CHUNK_WEIGHTS // max(1, self.in_features * multiple)) * multiple
        for start in range(0, self.out_features, rows):
            yield start, self.read(start, min(start + rows, self.out_features))


class Backend(Protocol):
    """One quantisation of linear layers; it has no state.

    A weight is encoded on the CPU, whatever device it is for, so that every device and every start of a
    model has the same quantised weights.

    Attributes:
        name: as `--quant` has it.
        format: names what the encoded tensors' values depend on, such as a library and its version.
    """

    name: str

    @property
    def format(self) -> str: ...

    def unavailable(self, device: torch.device) -> str | None:
        """Why layers cannot be run on `device`; None when they can."""

    def encode(self, rows: WeightRows) -> Tensors:
        """The quantised weight; never more than a few rows of it are in full precision."""

    def build(self, tensors: Tensors, like: nn.Linear, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """A layer that multiplies with an encoded weight, which it may take over.

        like: its in_features and out_features are the layer's, and so is its bias, on `device`.
        dtype: of the rows that go in and come out. CheckpointError when the tensors do not fit together.
        """

    def weight_bytes(self, out_features: int, in_features: int) -> int:
        """The bytes of an encoded weight in memory, scales included."""
