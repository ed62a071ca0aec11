"""Rotary angles of rows; a row's angles depend on its own position alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from flowedge.models.checkpoint.config_support import fixed_rope_length, rope_by_layer_type
from flowedge.models.checkpoint.families import Family

Rotation = tuple[torch.Tensor, torch.Tensor]  # cos and sin, [1, rows, rotated size]


class Rotary:
    """transformers' rotary embedding of a family, called so that no row changes the angles of another."""

    def __init__(self, family: Family, config: Any, layers: range, device: torch.device) -> None:
        """Prepare the rotations of the model's layers with the indices `layers`."""
        self._make: Callable[[], nn.Module] = lambda: family.rotary(config).to(device)
        self._module = self._make()
        self._fixed_length = fixed_rope_length(config)
        shared = None in rope_by_layer_type(config)
        self._kinds = [None if shared else config.layer_types[index] for index in layers]

    def __call__(self, hidden: torch.Tensor, position_ids: torch.Tensor, longest: int) -> Sequence[Rotation]:
        """The rotation of each layer, in the dtype of `hidden`, for int64 `position_ids` [1, rows].

        Args:
            longest: the largest position, which is not read from the device.
        """
        kinds = dict.fromkeys(self._kinds)
        by_kind = {kind: self._rotate(hidden, position_ids, longest, kind) for kind in kinds}
        return [by_kind[kind] for kind in self._kinds]

    def _rotate(
        self, hidden: torch.Tensor, position_ids: torch.Tensor, longest: int, kind: str | None
    ) -> Rotation:
        arguments = () if kind is None else (kind,)
        length = self._fixed_length
        if length is None or longest < length:
            rotation: Rotation = self._module(hidden, position_ids, *arguments)
            return rotation
        # Beyond this length, a call gives all rows the frequencies of its longest position, and the module
        # stores them. So each row gets a module and a call of its own.
        alone = [self._make()(hidden, ids, *arguments) for ids in torch.split(position_ids, 1, dim=1)]
        return torch.cat([cos for cos, _ in alone], dim=1), torch.cat([sin for _, sin in alone], dim=1)
