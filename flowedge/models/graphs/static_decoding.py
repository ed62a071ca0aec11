"""The small forwards of a block, as static forwards."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from flowedge.core.arrays import IntArray
from flowedge.models.exact.attention_test import AttentionSizes
from flowedge.models.exact.reading_plan import CachedPaths
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
from flowedge.models.graphs.store_pool import NewStore, StorePool
from flowedge.models.kv.store import KeyValueStore, new_store, store_shape
from flowedge.models.kv.tail import tail_depths, visible_tail
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.decoding import Computed
from flowedge.models.layers.experts import ExpertLinears

MOST_FORWARDS = 32  # of a block, over all sessions; each has a graph for every few layers
# A static forward gives way to another when none of so many forwards has used it. A capture takes longer than
# a forward, so sessions in turns must not take each other's place.
UNUSED_FORWARDS = 256

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Key:
    """A static forward of a block. Stores are compared by identity."""

    store: KeyValueStore
    shape: StaticShape
    taps: tuple[int, ...]


class BlockDecoding:
    """The StaticDecoding of a block.

    A forward of a new shape is computed layer by layer for the first `uncaptured` times, since a shape that
    never comes again is not worth a capture.

    Attributes:
        failure: why the device cannot record forwards; empty as long as it can.
    """

    def __init__(self, block: LayerBlock, maker: PieceMaker, *, uncaptured: int = 1) -> None:
        self.failure = ""
        self._title = f"layers {block.start} to {block.stop - 1}"
        self._maker = maker
        self._uncaptured = uncaptured
        self._modules = BlockModules.of(block)
        self._windows: Windows = block.windows
        exactness = block.exactness
        self._sizes: AttentionSizes | None = None if exactness is None else exactness.attention
        self._counts = static_rows(None if exactness is None else exactness.row_counts)
        self._row_bytes = SessionCache.bytes_per_row(block.config, block.num_layers, block.dtype, block.kv)
        config, layers, dtype, device, kv = (
            block.config,
            block.num_layers,
            block.dtype,
            block.device,
            block.kv,
        )
        self._pool = StorePool(lambda rows: new_store(store_shape(config, layers, rows), dtype, device, kv))
        self._forwards: OrderedDict[_Key, StaticForward] = OrderedDict()
        self._used_at: dict[_Key, int] = {}  # the number of the forward that used a static forward last
        self._count = 0  # forwards so far
        self._uses: dict[tuple[StaticShape, tuple[int, ...]], int] = {}

    @property
    def nbytes(self) -> int:
        return self._pool.idle_bytes + sum(each.nbytes for each in list(self._forwards.values()))

    @property
    def cache_row_bytes(self) -> int:
        return row_bytes_with_scratch(self._row_bytes)

    def store_for(self, capacity_rows: int) -> KeyValueStore:
        return self._pool.take(capacity_rows, self._drop)

    def reclaim(self, cache: SessionCache) -> None:
        weakref.finalize(cache, self._pool.give_back, cache.store).atexit = False

    def free(self) -> None:
        self._forwards.clear()
        self._used_at.clear()
        self._pool.clear()

    def forward(
        self,
        inputs: torch.Tensor,
        positions: IntArray,
        cache: SessionCache,
        cached: int,
        context: int,
        tail_parents: IntArray,
        should_abort: Callable[[], bool],
        taps: Sequence[int],
    ) -> Computed | None:
        rows = len(inputs)
        shape = choose_shape(self._counts, rows, cached + rows, self._pool.slots(cache.store))
        if self.failure or shape is None or not self._is_common(shape, tuple(taps)):
            return None
        cache.begin(cached, rows)
        seen = visible_tail(tail_parents, context, rows)
        tail_positions = context + tail_depths(tail_parents, context)
        decode = DecodeRows(inputs, cached, CachedPaths(context, tail_positions, seen, positions))
        forward = self._forward(_Key(cache.store, shape, tuple(taps)))
        if forward is None:
            return None
        plan = forward.plan(decode)
        if plan is None:
            return None
        forward.fill(decode, plan)
        try:
            forward.make_pieces()
        except RuntimeError as error:
            self._give_up(error)
            return None
        return Computed(forward.run(rows, should_abort))

    def _is_common(self, shape: StaticShape, taps: tuple[int, ...]) -> bool:
        used = self._uses.get((shape, taps), 0)
        self._uses[shape, taps] = used + 1
        return used >= self._uncaptured

    def _forward(self, key: _Key) -> StaticForward | None:
        """The forward of a key; None when all forwards that are held are in use, so that none is captured."""
        self._count += 1
        forward = self._forwards.get(key)
        if forward is None:
            if len(self._forwards) == MOST_FORWARDS:
                oldest = next(iter(self._forwards))
                if self._count - self._used_at[oldest] < UNUSED_FORWARDS:
                    return None
                self._remove(oldest)
            forward = self._forwards[key] = StaticForward(
                self._modules, key.store, key.shape, key.taps, self._reading(key), self._maker
            )
        self._forwards.move_to_end(key)
        self._used_at[key] = self._count
        return forward

    def _remove(self, key: _Key) -> None:
        del self._forwards[key], self._used_at[key]

    def _reading(self, key: _Key) -> StaticReading:
        if self._sizes is None:
            return MaskedStaticReading(key.store, self._windows, key.shape, self._modules.dtype)
        return OrderedStaticReading(key.store, self._windows, key.shape, self._sizes)

    def _drop(self, store: KeyValueStore) -> None:
        for key in [key for key in self._forwards if key.store is store]:
            self._remove(key)

    def _give_up(self, error: RuntimeError) -> None:
        first: BaseException = error
        while first.__context__ is not None:  # the end of a failed capture is another error
            first = first.__context__
        self.failure = str(first).splitlines()[0] if str(first) else type(first).__name__
        self._forwards.clear()
        self._used_at.clear()
        _log.warning(
            "%s run without CUDA graphs, layer by layer: the device cannot record them (%s); "
            "set agent.cuda_graphs = false to leave out the attempt",
            self._title,
            self.failure,
        )


def _store_maker(block: LayerBlock) -> NewStore:
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
