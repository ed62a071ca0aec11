"""The rotary angles of all positions up to the last that was needed, for the layers of a block."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from flowedge.core.arrays import IntArray
from flowedge.models.rotary import Rotation

# (int64 positions [n], the same positions on the host, dtype) -> the rotation of each layer
Rotations = Callable[[torch.Tensor, IntArray, torch.dtype], Sequence[Rotation]]

_LEAST = 512  # positions that are computed at once


class RotationTable:
    """Cosines and sines [positions, rotated size] in float32, for each layer.

    A row's angles depend on its position alone, so that angles are computed once.
    """

    def __init__(self, rotary: Rotations, dtype: torch.dtype) -> None:
        """`dtype` is the dtype that angles are rounded to, which is the dtype of hidden rows."""
        self._rotary = rotary
        self._dtype = dtype
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
        rotations = self._rotary(torch.from_numpy(positions), positions, self._dtype)
        joined: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # layers of a kind share their angles
        layers = []
        for index, rotation in enumerate(rotations):
            if id(rotation) not in joined:
                cos, sin = rotation.cos.float(), rotation.sin.float()
                before = self._layers[index] if self._layers else (cos[:0], sin[:0])
                joined[id(rotation)] = torch.cat((before[0], cos)), torch.cat((before[1], sin))
            layers.append(joined[id(rotation)])
        self._layers, self._length, self._addresses = layers, length, _of_layers(layers)

    @property
    def rotated(self) -> list[int]:
        """The rotated dimensions of a head in each layer."""
        return [cos.shape[1] for cos, _ in self.upto(0)]


def _of_layers(layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[Any, Any]:
    """The addresses of cosines, and of sines, as arrays of pointers."""
    pointers = ctypes.c_void_p * len(layers)
    return pointers(*(cos.data_ptr() for cos, _ in layers)), pointers(*(sin.data_ptr() for _, sin in layers))
