"""The columns of rows between blocks: what a row carries beside its hidden state.

A row that enters a layer behind the first has its hidden state, then the rows that this layer and each later
layer are given of the token, then the keys and values of earlier layers that they read (see Architecture).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from flowedge.models.architecture import Architecture
from flowedge.models.families.parts import KeyHeads


@dataclass(frozen=True, eq=False)
class RowColumns:
    """Rows in parts.

    Attributes:
        hidden: [n, hidden].
        given: [n, layer_input * layers], for each layer that follows, in order; None where there are none.
        keys: by layer, its keys and values [n, 2 * kv_heads * head_size].
    """

    hidden: torch.Tensor
    given: torch.Tensor | None = None
    keys: Mapping[int, torch.Tensor] = field(default_factory=dict)

    @property
    def beside_hidden(self) -> list[torch.Tensor]:
        """The columns behind the hidden state, in order."""
        given = [] if self.given is None or not self.given.shape[1] else [self.given]
        return [*given, *(self.keys[layer] for layer in sorted(self.keys))]


def divided(architecture: Architecture, layer: int, rows: torch.Tensor) -> RowColumns:
    """Divide rows [n, row_width] that enter `layer`; the parts are views."""
    if rows.shape[1] == architecture.hidden:
        return RowColumns(rows)
    read = architecture.carried_keys(layer)
    widths = [columns_of(architecture.key_heads(each)) for each in read]
    of_layers = rows.shape[1] - architecture.hidden - sum(widths)
    hidden, given, *keys = rows.split_with_sizes([architecture.hidden, of_layers, *widths], 1)
    return RowColumns(hidden, given if of_layers else None, dict(zip(read, keys, strict=True)))


def columns_of(heads: KeyHeads) -> int:
    """The columns of the keys and values of a layer."""
    return 2 * heads.count * heads.size


def by_head(heads: KeyHeads, columns: torch.Tensor) -> torch.Tensor:
    """Keys and values [2, kv_heads, n, head_size] of columns [n, 2 * kv_heads * head_size]."""
    return columns.view(-1, 2, heads.count, heads.size).permute(1, 2, 0, 3)


def as_columns(keys_values: torch.Tensor) -> torch.Tensor:
    """The columns of `by_head`, in memory of their own."""
    return keys_values.permute(2, 0, 1, 3).flatten(1).clone()


@dataclass(frozen=True, eq=False)
class BlockColumns:
    """What rows bring into layers [start, stop) of a model, and what they carry on from there."""

    architecture: Architecture
    start: int
    stop: int

    @cached_property
    def cached_layers(self) -> list[int]:
        """The layers of the model whose keys and values a cache of the block has."""
        return self.architecture.cached_layers(self.start, self.stop)

    @cached_property
    def cached_heads(self) -> list[KeyHeads]:
        """The heads of the keys of each of `cached_layers`."""
        return self.architecture.cached_heads(self.start, self.stop)

    @cached_property
    def carried(self) -> list[int]:
        """The places in a cache of own layers whose keys and values are carried on."""
        return [self.cached_layers.index(layer) for layer in self._read_later if layer >= self.start]

    @property
    def _read_later(self) -> Sequence[int]:
        """The layers whose keys and values later blocks read."""
        return self.architecture.carried_keys(self.stop)

    def received(self, entered: RowColumns) -> Iterator[tuple[int, torch.Tensor]]:
        """The keys and values of earlier layers that the block reads, by their places in a cache."""
        for place, layer in enumerate(self.cached_layers):
            if layer in entered.keys:
                yield place, by_head(self.cached_heads[place], entered.keys[layer].contiguous())

    def given(self, entered: RowColumns, layer: int) -> torch.Tensor | None:
        """The rows that a layer is given."""
        width = self.architecture.layer_input
        return None if entered.given is None else entered.given.narrow(1, (layer - self.start) * width, width)

    def space(self, rows: int, like: torch.Tensor) -> dict[int, torch.Tensor]:
        """Memory for the keys and values of so many rows that are carried on, by layer."""
        return {
            self.cached_layers[place]: like.new_empty((rows, columns_of(self.cached_heads[place])))
            for place in self.carried
        }

    def beside_hidden(self, entered: RowColumns, own: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        """The columns behind the hidden state of rows that leave the last layer.

        own: the columns of the keys and values of own layers, as of `space`.
        """
        keys = {layer: own[layer] if layer in own else entered.keys[layer] for layer in self._read_later}
        behind = (self.stop - self.start) * self.architecture.layer_input
        given = None if entered.given is None else entered.given[:, behind:]
        return RowColumns(entered.hidden, given, keys).beside_hidden
