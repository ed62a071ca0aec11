"""A decoder layer with attention in which each row sees itself alone, to test the rest of the layer."""

from __future__ import annotations

from typing import Any

import torch


class RowsAlone:
    """A cache, and the reading of it, in which the attention's output of a row is the row's own value."""

    def __init__(self) -> None:
        self._values = torch.zeros(0)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._values = values
        return keys, values

    def store_rows(self, keys_values: torch.Tensor, layer: int) -> None:  # noqa: ARG002
        self._values = keys_values[1].unsqueeze(0)

    def attend(self, query: torch.Tensor, _cached: object, *_: Any, **__: Any) -> torch.Tensor:
        """The value of each row, of its head's key head: [1, heads, rows, head_size]."""
        return self._values.repeat_interleave(query.shape[1] // self._values.shape[1], dim=1)
