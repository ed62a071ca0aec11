"""The forwards of a shape over the cache of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flowedge.models.copies import HostArray, to_device, to_host
from flowedge.models.exact.reading_plan import CachedPaths
from flowedge.models.exact.row_counts import pad_rows
from flowedge.models.graphs.pieces import Piece, PieceMaker
from flowedge.models.graphs.readings import StaticReading
from flowedge.models.graphs.shapes import StaticShape
from flowedge.models.graphs.static_layers import BlockModules, StaticInputs, StaticLayers
from flowedge.models.kv.store import KeyValueStore


@dataclass(frozen=True, eq=False)
class DecodeRows:
    """The rows of a forward, without padding.

    Attributes:
        inputs: int64 token ids [n], or hidden rows [n, hidden].
        cached: the slot of the first row.
        paths: the rows' positions and ancestors.
    """

    inputs: torch.Tensor
    cached: int
    paths: CachedPaths

    @property
    def count(self) -> int:
        return len(self.inputs)


class StaticForward:
    """Computes forwards of at most `shape.rows` rows, by pieces that are made at the first forward."""

    def __init__(
        self,
        modules: BlockModules,
        store: KeyValueStore,
        shape: StaticShape,
        taps: Sequence[int],
        reading: StaticReading,
        maker: PieceMaker,
    ) -> None:
        self._modules = modules
        self._store = store
        self._shape = shape
        self._taps = taps
        self._reading = reading
        self._maker = maker
        self._inputs: StaticInputs | None = None
        self._layers: StaticLayers | None = None
        self._pieces: list[Piece] = []

    @property
    def nbytes(self) -> int:
        """The bytes of static tensors; a graph's intermediates are the allocator's."""
        own = 0 if self._inputs is None else sum(tensor.nbytes for tensor in self._inputs.tensors)
        return own + (0 if self._layers is None else self._layers.nbytes)

    def plan(self, rows: DecodeRows) -> Any | None:
        """Return what the rows read; None when that does not fit the shape."""
        return self._reading.plan(rows.paths.padded(self._shape.rows))

    def make_pieces(self) -> None:
        """Make the pieces if there are none, after the first `fill`.

        Raises:
            RuntimeError: when the device cannot record the pieces.
        """
        if self._pieces:
            return
        assert self._inputs is not None, "the static tensors are filled"
        self._layers = StaticLayers(
            self._modules, self._store, self._shape, self._taps, self._reading, self._inputs
        )
        self._pieces = self._maker.make(self._layers.functions())

    def run(self, rows: int, should_abort: Callable[[], bool]) -> torch.Tensor | None:
        """Return the first `rows` rows [rows, hidden * (1 + taps)]; None after an abort."""
        assert self._layers is not None, "the pieces are made"
        for piece in self._pieces:
            if should_abort():
                return None
            piece.run()
        layers = self._layers
        return torch.cat((layers.hidden, *layers.tapped), dim=-1)[:rows]

    def fill(self, rows: DecodeRows, plan: Any) -> None:
        """Copy what the forward computes, and what it reads, to the static tensors."""
        self._reading.load(plan)
        scratch = self._store.kv.shape[3] - 1
        slots = self._shape.slots(rows.cached, rows.cached + rows.count, scratch)
        positions = self._shape.padded(rows.paths.positions)
        arrays: list[HostArray] = [positions, slots, *self._reading.arrays(plan)]
        here = rows.inputs.device.type == self._modules.device.type != "cpu"
        if here:
            copied = [pad_rows(rows.inputs, self._shape.rows), *to_device(self._modules.device, *arrays)]
        else:
            (content,) = to_host(rows.inputs)
            copied = to_device(self._modules.device, self._shape.padded(content), *arrays)
        if self._inputs is None:
            self._inputs = StaticInputs(copied[0].clone(), copied[1], copied[2], copied[3:])
        else:
            torch._foreach_copy_(self._inputs.tensors, copied)
