"""The small forwards of a block over tensors that stay in place, which a GPU replays as CUDA graphs."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from flowedge.models.architecture import Architecture
from flowedge.models.attention.attention import SeenKeys
from flowedge.models.attention.draft_rows import draft_depths, visible_drafts
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.attention.kv_store import KeyValueStore, new_store
from flowedge.models.attention.ordered import AttentionSizes
from flowedge.models.attention.ordered_plan import CachedPaths
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs.held_forwards import HeldForwards, StorePool
from flowedge.models.cuda_graphs.recording import CapturingMaker, PieceFunction, Recording, RecordingMaker
from flowedge.models.cuda_graphs.static_keys import (
    StaticKeyPlan,
    StaticMaskedKeys,
    StaticOrderedKeys,
    StaticShape,
    Windows,
    choose_shape,
    row_bytes_with_scratch,
    static_rows,
)
from flowedge.models.decoder_layer import DecoderLayer
from flowedge.models.experts import ExpertLinears
from flowedge.models.files.config_support import fixed_rope_length
from flowedge.models.host.copies import HostArray, to_device, to_host
from flowedge.models.lm_head import embed
from flowedge.models.rotary import Rotary, Rotation
from flowedge.models.row_counts import pad_rows
from flowedge.models.row_functions import RmsNorm
from flowedge.models.session_rows import Computed, SessionRows


def is_recordable(checkpoint: Checkpoint, start: int, stop: int) -> bool:
    """Return whether layers [start, stop) compute small forwards without waiting for the host."""
    layers, architecture = range(start, stop), checkpoint.architecture
    chosen_on_host = any(map(architecture.has_experts, layers)) or any(map(architecture.is_recurrent, layers))
    attend = all(map(architecture.attends, layers))
    alike = attend and not _unlike(architecture)
    return fixed_rope_length(checkpoint.config) is None and alike and not chosen_on_host


def _unlike(architecture: Architecture) -> str:
    """Why static tensors do not hold what layers read; empty where they do."""
    if architecture.full_heads is not None:
        return "the heads of keys differ between its layers"
    if architecture.layer_input:
        return "its layers are given rows of their own"
    return "its layers read keys of earlier ones" if architecture.has_shared_keys else ""


LAYERS_PER_PIECE = 4


@dataclass(frozen=True, eq=False)
class BlockModules:
    """What a block computes with. The block itself is not referred to, so that it can be freed."""

    start: int
    layers: Sequence[DecoderLayer]
    rotary: Rotary
    embedding: nn.Embedding | None
    embedding_multiplier: float
    norm: RmsNorm | None
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


class StaticKeys:
    """The Attention of a static forward: new rows go to slots that an index on the device names."""

    def __init__(self, store: KeyValueStore, slots: torch.Tensor, seen: SeenKeys) -> None:
        self._store, self._slots, self.attend = store, slots, seen.attend

    def store_rows(self, layer: int, keys_values: torch.Tensor) -> None:
        """Store a layer's keys and values [2, kv_heads, rows, head_size]."""
        self._store.put_both(layer, self._slots, keys_values)


@dataclass(frozen=True, eq=False)
class StaticInputs:
    """The tensors that are refilled for each forward.

    Attributes:
        rows: int64 token ids [rows] in the first block, otherwise hidden rows [rows, hidden].
        positions, slots: int64 [rows].
        read: the arrays of the plan of the keys.
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
        keys: StaticKeyPlan,
        inputs: StaticInputs,
    ) -> None:
        self._modules = modules
        self._taps = list(taps)
        self._keys = keys
        self._inputs = inputs
        self._store = store
        rows, width = shape.rows, modules.hidden_size
        self.hidden = torch.zeros((rows, width), dtype=modules.dtype, device=modules.device)
        self.tapped = self.hidden.new_zeros((len(self._taps), rows, width))
        self._attention: StaticKeys | None = None
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
        hidden = self._begin() if first == 0 else self.hidden
        assert self._attention is not None, "the first function comes first"
        for index in range(first, stop):
            if modules.start + index in self._taps:
                self.tapped[self._taps.index(modules.start + index)].copy_(hidden)
            hidden = modules.layers[index](hidden, self._attention, self._rotations[index])
        if stop == len(modules.layers) and modules.norm is not None:
            hidden = modules.norm(hidden)
        self.hidden.copy_(hidden)

    def _begin(self) -> torch.Tensor:
        """Compute what all layers need, and return the first layer's inputs [rows, hidden]."""
        modules, inputs = self._modules, self._inputs
        hidden = inputs.rows
        if modules.embedding is not None:
            hidden = embed(modules.embedding, modules.embedding_multiplier, inputs.rows)
        # Later pieces read these tensors, which stay in place because this object refers to them.
        seen = self._keys.seen_keys(inputs.read, inputs.positions)
        self._attention = StaticKeys(self._store, inputs.slots, seen)
        self._rotations = modules.rotary.on_device(inputs.positions, modules.dtype)
        return hidden


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
        keys: StaticKeyPlan,
        maker: RecordingMaker,
    ) -> None:
        self._modules = modules
        self._store = store
        self._shape = shape
        self._taps = taps
        self._keys = keys
        self._maker = maker
        self._inputs: StaticInputs | None = None
        self._layers: StaticLayers | None = None
        self._pieces: list[Recording] = []

    @property
    def nbytes(self) -> int:
        """The bytes of static tensors; a graph's intermediates are the allocator's."""
        own = 0 if self._inputs is None else sum(tensor.nbytes for tensor in self._inputs.tensors)
        return own + (0 if self._layers is None else self._layers.nbytes)

    def plan(self, rows: DecodeRows) -> Any | None:
        """Return what the rows read; None when that does not fit the shape."""
        return self._keys.plan(rows.paths.padded(self._shape.rows))

    def make_pieces(self) -> None:
        """Make the pieces if there are none, after the first `fill`.

        Raises:
            RuntimeError: when the device cannot record the pieces.
        """
        if self._pieces:
            return
        assert self._inputs is not None, "the static tensors are filled"
        self._layers = StaticLayers(
            self._modules, self._store, self._shape, self._taps, self._keys, self._inputs
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
        self._keys.load(plan)
        scratch = self._store.kv.shape[3] - 1
        slots = self._shape.slots(rows.cached, rows.cached + rows.count, scratch)
        positions = self._shape.padded(rows.paths.positions)
        arrays: list[HostArray] = [positions, slots, *self._keys.arrays(plan)]
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


_log = logging.getLogger(__name__)


class BlockDecoding:
    """The StaticDecoding of a block."""

    def __init__(self, block: LayerBlock, maker: RecordingMaker, *, uncaptured: int = 1) -> None:
        """Decode for a block; `uncaptured` as for HeldForwards."""
        self._maker = maker
        self._modules = BlockModules.of(block)
        self._windows: Windows = block.windows
        exactness = block.exactness
        self._sizes: AttentionSizes | None = None if exactness is None else exactness.attention
        self._counts = static_rows(None if exactness is None else exactness.row_counts)
        self._row_bytes = block.row_bytes
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

    def reclaim(self, cache: KVCache) -> None:
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
        seen = visible_drafts(tail_parents, context, rows)
        tail_positions = context + draft_depths(tail_parents, context)
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
            keys = self._keys_of(store, shape)
            return StaticForward(self._modules, store, shape, taps, keys, self._maker)

        return self._forwards.find(store, (shape, taps), make)

    def _keys_of(self, store: KeyValueStore, shape: StaticShape) -> StaticKeyPlan:
        if self._sizes is None:
            return StaticMaskedKeys(store, self._windows, shape, self._modules.dtype)
        return StaticOrderedKeys(store, self._windows, shape, self._sizes)


def _store_maker(block: LayerBlock) -> Callable[[int], KeyValueStore]:
    """Return a function that allocates stores, and does not refer to the block."""
    heads, dtype, device, kv = block.cached_heads, block.dtype, block.device, block.kv

    def new(rows: int) -> KeyValueStore:
        return new_store(heads, rows, dtype, device, kv)

    return new


def unsuited(block: LayerBlock) -> str:
    """Why the forwards of a block cannot be recorded; empty when they can."""
    if not block.rotary.is_static:
        return "its rotary angles are computed on the host"
    if any(layer.is_recurrent for layer in block.layers):
        return "the steps of recurrent layers are chosen on the host"
    if not all(layer.attends for layer in block.layers):
        return "some of its layers have an MLP alone"
    if any(isinstance(module, ExpertLinears) for layer in block.layers for module in layer.modules()):
        return "the host has to know the experts that rows choose"
    return _unlike(block.architecture)


def capture_decoding(block: LayerBlock) -> None:
    """Let a block on a GPU record its small forwards as CUDA graphs, if it can."""
    if block.device.type != "cuda":
        return
    if reason := unsuited(block):
        _log.info("layers %d to %d run without CUDA graphs: %s", block.start, block.stop - 1, reason)
        return
    block.decoding = BlockDecoding(block, CapturingMaker(block.device))
