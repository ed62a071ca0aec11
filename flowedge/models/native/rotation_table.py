"""The rotary angles of all positions up to the last that was needed, for the layers of a block."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from flowedge.core.arrays import IntArray

# (rows of a dtype, int64 positions [1, n], the same positions [n]) -> cosines and sines [1, n, size] by layer
Rotations = Callable[[torch.Tensor, torch.Tensor, IntArray], Sequence[tuple[torch.Tensor, torch.Tensor]]]

_LEAST = 512  # positions that are computed at once


class RotationTable:
    """Cosines and sines [positions, rotated size] in float32, for each layer.

    A row's angles depend on its position alone, so that angles are computed once.
    """

    def __init__(self, rotary: Rotations, dtype: torch.dtype) -> None:
        """`dtype` is the dtype that angles are rounded to, which is the dtype of hidden rows."""
        self._rotary = rotary
        self._like = torch.empty(0, dtype=dtype)
        self._length = 0
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._addresses = _of_layers([])

    def addresses(self, last: int) -> tuple[Any, Any, object]:
        """The addresses of each layer's cosines, and sines, as arrays; and the owner of that memory."""
        layers = self.upto(last)
        return *self._addresses, layers

    def upto(self, last: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The cosines and sines of each layer, for the positions [0, last] at least."""
        if last >= self._length:
            self._extend(max(_LEAST, 2 * self._length, last + 1))
        return self._layers

    def _extend(self, length: int) -> None:
        positions = np.arange(self._length, length)
        rotations = self._rotary(self._like, torch.from_numpy(positions)[None], positions)
        joined: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # layers of a kind share their angles
        layers = []
        for index, (cos, sin) in enumerate(rotations):
            if id(cos) not in joined:
                before = self._layers[index] if self._layers else (cos[0, :0].float(), sin[0, :0].float())
                joined[id(cos)] = (
                    torch.cat((before[0], cos[0].float())),
                    torch.cat((before[1], sin[0].float())),
                )
            layers.append(joined[id(cos)])
        self._layers, self._length, self._addresses = layers, length, _of_layers(layers)

    @property
    def rotated(self) -> list[int]:
        """The rotated dimensions of a head in each layer."""
        return [cos.shape[1] for cos, _ in self.upto(0)]


def _of_layers(layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[Any, Any]:
    """The addresses of cosines, and of sines, as arrays of pointers."""
    pointers = ctypes.c_void_p * len(layers)
    return pointers(*(cos.data_ptr() for cos, _ in layers)), pointers(*(sin.data_ptr() for _, sin in layers))
