"""The small forwards of a block, as static forwards."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence

from flowedge.models.exact.attention_test import AttentionSizes
from flowedge.models.exact.reading_plan import CachedPaths
from flowedge.models.graphs.held_forwards import HeldForwards
from flowedge.models.graphs.pieces import CapturingMaker, PieceMaker
from flowedge.models.graphs.readings import (
    MaskedStaticReading,
    OrderedStaticReading,
    StaticReading,
    Windows,
)
from flowedge.models.graphs.shapes import StaticShape, choose_shape, row_bytes_with_scratch, static_rows
from flowedge.models.graphs.static_forward import DecodeRows, StaticForward
from flowedge.models.graphs.static_layers import BlockModules
from flowedge.models.graphs.store_pool import StorePool
from flowedge.models.kv.store import KeyValueStore, new_store, store_shape
from flowedge.models.kv.tail import tail_depths, visible_tail
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.decoding import Computed
from flowedge.models.layers.experts import ExpertLinears
from flowedge.models.layers.session_rows import SessionRows

_log = logging.getLogger(__name__)


class BlockDecoding:
    """The StaticDecoding of a block."""

    def __init__(self, block: LayerBlock, maker: PieceMaker, *, uncaptured: int = 1) -> None:
        """Decode for a block; `uncaptured` as for HeldForwards."""
        self._maker = maker
        self._modules = BlockModules.of(block)
        self._windows: Windows = block.windows
        exactness = block.exactness
        self._sizes: AttentionSizes | None = None if exactness is None else exactness.attention
        self._counts = static_rows(None if exactness is None else exactness.row_counts)
        self._row_bytes = SessionCache.bytes_per_row(block.config, block.num_layers, block.dtype, block.kv)
        self._pool = StorePool(_store_maker(block))
        self._forwards: HeldForwards[StaticForward] = HeldForwards(
            f"layers {block.start} to {block.stop - 1} run", uncaptured
        )

    @property
    def failure(self) -> str:
        """Why the device cannot record forwards; empty as long as it can."""
        return self._forwards.failure

    @property
    def nbytes(self) -> int:
        return self._pool.idle_bytes + sum(each.nbytes for each in self._forwards)

    @property
    def cache_row_bytes(self) -> int:
        return row_bytes_with_scratch(self._row_bytes)

    def store_for(self, capacity_rows: int) -> KeyValueStore:
        return self._pool.take(capacity_rows, self._forwards.drop)

    def reclaim(self, cache: SessionCache) -> None:
        weakref.finalize(cache, self._pool.give_back, cache.store).atexit = False

    def free(self) -> None:
        self._forwards.clear()
        self._pool.clear()

    def forward(
        self, part: SessionRows, should_abort: Callable[[], bool], taps: Sequence[int]
    ) -> Computed | None:
        rows, store, context, tail_parents = part.count, part.cache.store, part.context, part.tail_parents
        shape = choose_shape(self._counts, rows, part.cached + rows, self._pool.slots(store))
        forward = None if shape is None else self._forward(store, shape, tuple(taps))
        if forward is None:
            return None
        seen = visible_tail(tail_parents, context, rows)
        tail_positions = context + tail_depths(tail_parents, context)
        paths = CachedPaths(context, tail_positions, seen, part.positions)
        decode = DecodeRows(part.inputs, part.cached, paths)
        plan = forward.plan(decode)
        if plan is None:
            return None
        forward.fill(decode, plan)
        if not self._forwards.make_pieces(forward):
            return None
        return Computed(forward.run(rows, should_abort))

    def _forward(
        self, store: KeyValueStore, shape: StaticShape, taps: tuple[int, ...]
    ) -> StaticForward | None:
        def make() -> StaticForward:
            reading = self._reading(store, shape)
            return StaticForward(self._modules, store, shape, taps, reading, self._maker)

        return self._forwards.find(store, (shape, taps), make)

    def _reading(self, store: KeyValueStore, shape: StaticShape) -> StaticReading:
        if self._sizes is None:
            return MaskedStaticReading(store, self._windows, shape, self._modules.dtype)
        return OrderedStaticReading(store, self._windows, shape, self._sizes)


def _store_maker(block: LayerBlock) -> Callable[[int], KeyValueStore]:
    """Return a function that allocates stores, and does not refer to the block."""
    config, layers, dtype, device, kv = block.config, block.num_layers, block.dtype, block.device, block.kv

    def new(rows: int) -> KeyValueStore:
        return new_store(store_shape(config, layers, rows), dtype, device, kv)

    return new


def unsuited(block: LayerBlock) -> str:
    """Why the forwards of a block cannot be recorded; empty when they can."""
    if not block.rotary.is_static:
        return "its rotary angles are computed on the host"
    if any(isinstance(module, ExpertLinears) for layer in block.layers for module in layer.modules()):
        return "the host has to know the experts that rows choose"
    return ""


def capture_decoding(block: LayerBlock) -> None:
    """Let a block on a GPU record its small forwards as CUDA graphs, if it can."""
    if block.device.type != "cuda":
        return
    if reason := unsuited(block):
        _log.info("layers %d to %d run without CUDA graphs: %s", block.start, block.stop - 1, reason)
        return
    block.decoding = BlockDecoding(block, CapturingMaker(block.device))
