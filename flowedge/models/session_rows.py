"""The rows of sessions that a forward of a block computes: their checks, and their attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from flowedge.core.arrays import IntArray
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT
from flowedge.models.attention.attention import Scoring
from flowedge.models.attention.draft_rows import draft_depths
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.attention.kv_store import KeyValueStore
from flowedge.models.host.copies import moved, to_device, to_host
from flowedge.models.kernels.row_paths import RowPaths, placed_depths, row_paths
from flowedge.models.recurrent.recurrent_layer import RecurrentLayer
from flowedge.models.recurrent.row_steps import UpdateSteps
from flowedge.models.recurrent.updated_states import UpdatedStates
from flowedge.models.row_counts import RowCounts


def check_inputs(inputs: torch.Tensor, vocab_size: int | None, width: int, dtype: torch.dtype) -> None:
    """Raise ProtocolError where the inputs of `LayerBlock.forward` contradict their description.

    Args:
        vocab_size: the size of the vocabulary in the first block; None in others.
    """
    if vocab_size is None:
        if inputs.ndim != 2 or inputs.shape[1] != width or inputs.dtype != dtype:
            raise ProtocolError(
                f"expected hidden rows [n, {width}] of {dtype}, got {list(inputs.shape)} of {inputs.dtype}"
            )
    elif inputs.ndim != 1 or inputs.dtype != torch.int64:
        raise ProtocolError(f"expected int64 token ids [n], got {list(inputs.shape)} of {inputs.dtype}")
    if not len(inputs):
        raise ProtocolError("a segment without rows cannot be computed")
    if vocab_size is not None and not all_within(inputs, vocab_size):
        raise ProtocolError(f"a token id is not within [0, {vocab_size})")


def all_within(tokens: torch.Tensor, vocab_size: int) -> bool:
    """Whether all token ids are of the vocabulary, as far as that is known without waiting for a GPU."""
    if tokens.device.type != "cpu":
        return True
    (ids,) = to_host(tokens)
    return bool(ids.min() >= 0 and ids.max() < vocab_size)


def check_indices(
    positions: npt.NDArray[np.int64],
    tail_parents: npt.NDArray[np.int64],
    cached: int,
    context: int,
    rows: int,
) -> None:
    """Raise ProtocolError where the arguments of `LayerBlock.forward` contradict their description."""
    if not 0 <= context <= cached:
        raise ProtocolError(f"context {context} is not within the {cached} cached rows")
    if positions.shape != (rows,) or positions.dtype != np.int64:
        raise ProtocolError(
            f"expected {rows} int64 positions, got {list(positions.shape)} of {positions.dtype}"
        )
    if tail_parents.shape != (cached + rows - context,) or tail_parents.dtype != np.int64:
        raise ProtocolError(
            f"expected {cached + rows - context} int64 tail parents, "
            f"got {list(tail_parents.shape)} of {tail_parents.dtype}"
        )
    if (positions < context).any() or (positions > np.arange(cached, cached + rows)).any():
        raise ProtocolError(f"a position is not within [{context}, the row's slot]")


@dataclass(frozen=True, eq=False)
class SessionRows:
    """n consecutive rows of a session, whose keys and values go to the slots [cached, cached + n).

    Attributes:
        inputs: int64 token ids [n] in the first block; hidden rows [n, hidden] of its dtype in others.
        positions: int64 [n], absolute: the context plus the row's depth, so at most the row's slot.
        context: slots below it are committed and visible to every row.
        tail_parents: int64 [cached + n - context], the parent slot of each tail row; -1 for the last row of
            the context. A tail row sees the context, its ancestors and itself. Consecutive committed rows
            form a chain.
        committed: whether the rows are a chain after the context that will never be taken back.
    """

    inputs: torch.Tensor
    positions: IntArray
    cache: KVCache
    cached: int
    context: int
    tail_parents: IntArray
    committed: bool = False

    @property
    def count(self) -> int:
        return len(self.inputs)

    @property
    def paths(self) -> RowPaths:
        """The slots that the rows read, for the kernels. Raises ProtocolError as `row_paths`."""
        return row_paths(self.context, self.tail_parents, self.positions)

    @property
    def updated(self) -> UpdatedStates | None:
        """What the rows update in recurrent layers; None in a block without such layers."""
        states = self.cache.states
        if states is None:
            return None
        return UpdatedStates(states, self.cached, self.context, self.tail_parents)

    def check(self, vocab_size: int | None, width: int, dtype: torch.dtype) -> None:
        """Check the rows before a block computes them.

        Args:
            vocab_size: the size of the vocabulary in the first block; None in others.
            width, dtype: those of hidden rows.

        Raises:
            ProtocolError: when the attributes contradict their description or each other.
            CapacityError: when the rows do not fit the cache.
        """
        check_inputs(self.inputs, vocab_size, width, dtype)
        check_indices(self.positions, self.tail_parents, self.cached, self.context, self.count)
        self.cache.check_capacity(self.cached, self.count)

    def check_paths(self, *, placed: bool) -> None:
        """Raise ProtocolError when a parent does not come before its child.

        Args:
            placed: whether it is an error, too, that a position is not the row's place in the tree.
        """
        if placed:
            placed_depths(self.context, self.tail_parents, self.positions)
        else:
            draft_depths(self.tail_parents, self.context)

    def cut(self, start: int, stop: int) -> SessionRows:
        """Return the rows [start, stop)."""
        if stop - start == self.count:
            return self
        first, context, parents = self.cached + start, self.context, self.tail_parents
        if self.committed:  # the rows before these are context, so that states need not be computed again
            context = first
            parents = np.append(np.full(1, CONTEXT), np.arange(first, first + stop - start - 1))
        return SessionRows(
            self.inputs[start:stop],
            self.positions[start:stop],
            self.cache,
            first,
            context,
            parents[: first + stop - start - context],
            self.committed,
        )


class SessionsAttention:
    """The Attention, and the Updates, of rows of one session or of several, of which each has its own cache.

    Rows of padding belong to the last session; they update no state.

    Attributes:
        copies: by the layer of a cache, the keys and values [2, kv_heads, rows, head_size] that were stored.
    """

    def __init__(self, parts: Sequence[SessionRows], padded_rows: int, copied: Sequence[int] = ()) -> None:
        """Find what the rows of all parts see; they are followed by padding up to `padded_rows`.

        copied: the layers of caches whose keys and values `copies` gets.

        Raises:
            CapacityError: when the rows of a part do not fit its cache.
            ProtocolError: when a parent does not come before its child.
        """
        self._counts = [part.count for part in parts]
        self._copied = copied
        self.copies: dict[int, torch.Tensor] = {}
        self._counts[-1] += padded_rows - sum(self._counts)
        self._sessions = [
            part.cache.seen_keys(part.cached, part.context, part.tail_parents, part.positions, count)
            for part, count in zip(parts, self._counts, strict=True)
        ]

        self._parts = parts
        self._updated = [each for part in parts if (each := part.updated) is not None]

    def take_in(self, nets: Sequence[RecurrentLayer]) -> None:
        """Take committed rows into the states of all recurrent layers of the block.

        Raises ProtocolError as RowStates.steps_to and RowStates.take.
        """
        committed = [each.states.steps_to(each.context) for each in self._updated]
        for updated, steps, paths in zip(self._updated, committed, self._paths_of(committed), strict=True):
            for net in nets:
                net.run(updated.states, steps, paths, 0)
            updated.states.take(updated.context)
        counts = [part.count for part in self._parts]
        self._steps = [each.steps(count) for each, count in zip(self._updated, counts, strict=True)]
        self._paths = self._paths_of(self._steps)

    def update(self, layer: RecurrentLayer, inputs: torch.Tensor) -> torch.Tensor:
        outputs = []
        divided = inputs.split_with_sizes(self._counts)
        steps = zip(self._steps, self._paths, strict=True)
        for part, each, of_part, rows in zip(self._parts, self._updated, steps, divided, strict=True):
            each.states.recent[layer.index].narrow(0, each.first, part.count).copy_(rows[: part.count])
            outputs.append(layer.run(each.states, *of_part, len(rows)))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _paths_of(self, steps: Sequence[UpdateSteps]) -> list[torch.Tensor]:
        """UpdateSteps.rows of each session on the device, in one copy."""
        return to_device(self._updated[0].states.recent.device, *(each.rows for each in steps))

    def store_rows(self, layer: int, keys_values: torch.Tensor) -> None:
        if layer in self._copied:
            self.copies[layer] = keys_values
        if len(self._sessions) == 1:
            self._sessions[0].store_rows(layer, keys_values)
            return
        divided = keys_values.split_with_sizes(self._counts, 2)
        for session, rows in zip(self._sessions, divided, strict=True):
            session.store_rows(layer, rows)

    def attend(self, layer: int, query: torch.Tensor, kv_heads: int, scoring: Scoring) -> torch.Tensor:
        if len(self._sessions) == 1:
            return self._sessions[0].attend(layer, query, kv_heads, scoring)
        divided = query.split_with_sizes(self._counts, 2)
        attended = [
            session.attend(layer, rows, kv_heads, scoring).transpose(1, 2)
            for session, rows in zip(self._sessions, divided, strict=True)
        ]
        return torch.cat(attended, 1).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class RowChunk:
    """Rows of one part of a forward; `part` is the part's index."""

    part: int
    rows: SessionRows


def joined_inputs(parts: Sequence[SessionRows], device: torch.device) -> torch.Tensor:
    """Return the inputs of all parts on the device, in one copy where they come from the host together."""
    inputs = [part.inputs for part in parts]
    if len(inputs) == 1:
        return moved(inputs[0], device)
    if device.type != "cpu" and all(own.is_cpu for own in inputs):
        (copied,) = to_device(device, np.concatenate([to_host(own)[0] for own in inputs]))
        return copied
    return torch.cat([moved(own, device) for own in inputs])


def batches(parts: Sequence[SessionRows], counts: RowCounts) -> Iterator[list[RowChunk]]:
    """Divide the rows of parts, in their order, into batches that are computed one after the other.

    A batch has at most `counts.most` rows. Rows of one cache are in it once, so that a second part of a
    session is computed after the first.
    """
    batch: list[RowChunk] = []
    rows = 0
    for index, part in enumerate(parts):
        start = 0
        while start < part.count:
            if rows == counts.most or any(piece.rows.cache is part.cache for piece in batch):
                yield batch
                batch, rows = [], 0
            stop = min(part.count, start + counts.most - rows)
            batch.append(RowChunk(index, part.cut(start, stop)))
            rows += stop - start
            start = stop
    yield batch


@dataclass(frozen=True)
class Computed:
    """The result of a forward: rows [n, hidden * (1 + taps)], or None after an abort."""

    rows: torch.Tensor | None


class StaticDecoding(Protocol):
    """Computes the small forwards of a block over tensors that stay in place."""

    @property
    def failure(self) -> str:
        """Why the device cannot record forwards; empty as long as it can."""

    @property
    def nbytes(self) -> int:
        """The bytes of static tensors, and of caches that wait for the next session."""

    @property
    def cache_row_bytes(self) -> int:
        """Most bytes that a row of a session's capacity takes."""

    def store_for(self, capacity_rows: int) -> KeyValueStore:
        """Return the keys and values of a new session, filled with zeros."""

    def reclaim(self, cache: KVCache) -> None:
        """Give the cache's store to a later session as soon as the cache is deleted."""

    def free(self) -> None:
        """Free all static tensors, and the caches that wait for the next session."""

    def forward(
        self, part: SessionRows, should_abort: Callable[[], bool], taps: Sequence[int]
    ) -> Computed | None:
        """Compute LayerBlock.forward for checked rows; None when the block has to compute it itself."""
