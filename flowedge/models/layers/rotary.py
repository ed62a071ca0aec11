"""Rotary angles of rows; a row's angles depend on its own position alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from flowedge.core.arrays import IntArray
from flowedge.models.copies import HostArray, to_device, to_host
from flowedge.models.files.config_support import fixed_rope_length, rope_by_layer_type
from flowedge.models.files.families import Family
from flowedge.models.lean.rotation import HeadRotation

Rotation = tuple[torch.Tensor, torch.Tensor]  # cos and sin, [1, rows, rotated size]


class Rotary:
    """transformers' rotary embedding of a family, called so that no row changes the angles of another."""

    def __init__(self, family: Family, config: Any, layers: range, device: torch.device) -> None:
        """Prepare the rotations of the model's layers with the indices `layers`."""
        self._length = fixed_rope_length(config)
        self._device = device
        self._new: Callable[[], nn.Module] = lambda: family.rotary(config)
        self._module = self._make()
        shared = None in rope_by_layer_type(config)
        self._kinds = [None if shared else config.layer_types[index] for index in layers]

    def __call__(
        self, hidden: torch.Tensor, position_ids: torch.Tensor, positions: IntArray
    ) -> Sequence[Rotation]:
        """The rotation of each layer, in the dtype of `hidden`.

        Args:
            position_ids: int64 [1, rows] on the device; positions: int64 [rows], the same on the host.
        """
        if self.is_static:
            return self.on_device(hidden, position_ids)
        return self._by_layer(partial(self._rotate_on_host, positions, hidden.dtype))

    @property
    def is_static(self) -> bool:
        """Whether the angles are computed on the device alone, by the same operations for all positions."""
        return self._length is None

    def on_device(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> Sequence[Rotation]:
        """The rotation of each layer, as above, where `is_static`."""
        return self._by_layer(partial(self._rotate, hidden, position_ids))

    def _by_layer(self, rotate: Callable[[str | None], Rotation]) -> Sequence[Rotation]:
        by_kind = {kind: rotate(kind) for kind in dict.fromkeys(self._kinds)}
        return [by_kind[kind] for kind in self._kinds]

    def _make(self) -> nn.Module:
        # Where frequencies depend on the length, the module reads positions, which would wait for a GPU.
        return self._new().to(self._device) if self._length is None else self._new()

    def _rotate(self, like: torch.Tensor, position_ids: torch.Tensor, kind: str | None) -> Rotation:
        return HeadRotation(*self._angles(like, position_ids, kind))

    def _angles(self, like: torch.Tensor, position_ids: torch.Tensor, kind: str | None) -> Rotation:
        angles: Rotation = self._module(like, position_ids, *(() if kind is None else (kind,)))
        return angles

    def _rotate_on_host(self, positions: IntArray, dtype: torch.dtype, kind: str | None) -> Rotation:
        cos, sin = to_device(self._device, *self._host_angles(positions, dtype, kind))
        return HeadRotation(cos, sin)

    def _host_angles(self, positions: IntArray, dtype: torch.dtype, kind: str | None) -> list[HostArray]:
        """The cos and sin of rows, computed on the host."""
        like, ids = torch.empty(0, dtype=dtype), torch.from_numpy(positions)[None]
        assert self._length is not None
        if int(positions.max()) < self._length:
            return to_host(*self._angles(like, ids, kind))
        # Beyond this length, a call gives all rows the frequencies of its longest position, and the module
        # stores them. So each row gets a module and a call of its own.
        arguments = () if kind is None else (kind,)
        alone = [self._make()(like, each, *arguments) for each in torch.split(ids, 1, dim=1)]
        return to_host(
            torch.cat([cos for cos, _ in alone], dim=1), torch.cat([sin for _, sin in alone], dim=1)
        )
