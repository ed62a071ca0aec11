"""The computation of a static forward: a function for every few layers, over tensors that stay in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from flowedge.models.graphs.pieces import PieceFunction
from flowedge.models.graphs.readings import StaticReading
from flowedge.models.graphs.shapes import StaticShape
from flowedge.models.kv.store import KeyValueStore
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.head import embed
from flowedge.models.layers.rotary import Rotary, Rotation

LAYERS_PER_PIECE = 4


@dataclass(frozen=True, eq=False)
class BlockModules:
    """What a block computes with. The block itself is not referred to, so that it can be freed."""

    start: int
    layers: Sequence[nn.Module]
    rotary: Rotary
    embedding: nn.Embedding | None
    embedding_multiplier: float
    norm: nn.Module | None
    hidden_size: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, block: LayerBlock) -> BlockModules:
        return cls(
            block.start,
            block.layers,
            block.rotary,
            block.embedding,
            block.embedding_multiplier,
            block.norm,
            block.hidden_size,
            block.dtype,
            block.device,
        )


class StaticCache:
    """The `past_key_values` of a static forward: new rows go to slots that an index on the device names."""

    def __init__(self, store: KeyValueStore, reading: StaticReading, slots: torch.Tensor) -> None:
        self._store = store
        self._reading = reading
        self._slots = slots

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._store.put(layer, self._slots, keys[0], values[0])
        return self._reading.keys_values(layer, keys, values)

    def store_rows(self, keys_values: torch.Tensor, layer: int) -> None:
        """Store a layer's keys and values [2, kv_heads, rows, head_size]."""
        self._store.put_both(layer, self._slots, keys_values)

    def views(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values [1, kv_heads, columns, head_size] for a layer's attention with a mask."""
        return self._reading.views(layer)


@dataclass(frozen=True, eq=False)
class StaticInputs:
    """The tensors that are refilled for each forward.

    Attributes:
        rows: int64 token ids [rows] in the first block, otherwise hidden rows [rows, hidden].
        positions, slots: int64 [rows].
        read: the arrays of the reading's plan.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    read: list[torch.Tensor]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.rows, self.positions, self.slots, *self.read]


class StaticLayers:
    """The layers of a block over static tensors.

    Attributes:
        hidden: [rows, hidden], the rows after the last function that was run.
        tapped: [taps, rows, hidden], the inputs of the tapped layers.
    """

    def __init__(
        self,
        modules: BlockModules,
        store: KeyValueStore,
        shape: StaticShape,
        taps: Sequence[int],
        reading: StaticReading,
        inputs: StaticInputs,
    ) -> None:
        self._modules = modules
        self._taps = list(taps)
        self._reading = reading
        self._inputs = inputs
        self._cache = StaticCache(store, reading, inputs.slots)
        rows, width = shape.rows, modules.hidden_size
        self.hidden = torch.zeros((rows, width), dtype=modules.dtype, device=modules.device)
        self.tapped = self.hidden.new_zeros((len(self._taps), rows, width))
        self._masks: list[Any] = []
        self._rotations: Sequence[Rotation] = []

    @property
    def nbytes(self) -> int:
        return self.hidden.nbytes + self.tapped.nbytes

    def functions(self) -> list[PieceFunction]:
        """Functions to be called in this order, each of which computes LAYERS_PER_PIECE layers."""
        count = len(self._modules.layers)
        starts = range(0, count, LAYERS_PER_PIECE)
        return [partial(self._run, start, min(start + LAYERS_PER_PIECE, count)) for start in starts]

    def _run(self, first: int, stop: int) -> None:
        modules = self._modules
        hidden = (self._begin() if first == 0 else self.hidden)[None]
        for index in range(first, stop):
            if modules.start + index in self._taps:
                self.tapped[self._taps.index(modules.start + index)].copy_(hidden[0])
            hidden = modules.layers[index](
                hidden,
                attention_mask=self._masks[index],
                position_ids=self._inputs.positions[None],
                past_key_values=self._cache,
                position_embeddings=self._rotations[index],
            )
        if stop == len(modules.layers) and modules.norm is not None:
            hidden = modules.norm(hidden)
        self.hidden.copy_(hidden[0])

    def _begin(self) -> torch.Tensor:
        """Compute what all layers need, and return the first layer's inputs [rows, hidden]."""
        modules, inputs = self._modules, self._inputs
        hidden = inputs.rows
        if modules.embedding is not None:
            hidden = embed(modules.embedding, modules.embedding_multiplier, inputs.rows)
        # Later pieces read these tensors, which stay in place because this object refers to them.
        self._masks = self._reading.masks(inputs.read, inputs.positions)
        self._rotations = modules.rotary.on_device(hidden[None], inputs.positions[None])
        return hidden
