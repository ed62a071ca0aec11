"""Attention that adds up each row's keys in the order of their positions, wherever they are cached.

Scores, weights and sums are in float32. Three properties of the device's float32 products are used, which
`exact/attention_self_test.py` checks on the device:

- an element of a product does not depend on its row and column, nor on the number of rows;
- a product adds up at most RECENT_SLOTS terms from first to last, so that terms of zero change nothing: the
  keys of other rows between the keys of a row have the weight zero;
- a product of CHUNK terms adds up in an order that depends on CHUNK alone.

Heads that share a key head are folded into rows. The parts of a row's keys are merged as in an online
softmax: by the largest score, the sum of weights and the weighted sum of values so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch.nn.functional import pad

from flowedge.core.arrays import IntArray
from flowedge.models.attention.attention import Scoring, Windows
from flowedge.models.attention.draft_rows import draft_depths, visible_drafts
from flowedge.models.attention.kv_store import KeyValueStore
from flowedge.models.attention.ordered_plan import (
    CHUNK,
    Bools,
    CachedPaths,
    Ints,
    KeyPlan,
    RecentKeys,
    plan_keys,
)
from flowedge.models.host.copies import HostArray, to_device

LEAST_SCORE = -87.0  # below the largest; below that, exponentials are denormal
ONES = 16  # columns of the product that adds up weights; a single column would be another kernel
_HIDDEN = -1e30  # added to the score of a key that is not read, so that the largest score is of another key

Sums: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # largest score, weights, weighted values


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes with which ordered attention gives rows the same bits on a device.

    Attributes:
        least_queries: fewest queries of a product.
        group_rows: most rows whose recent keys are read together; None for no limit.
    """

    least_queries: int
    group_rows: int | None


class CachedKeysValues(Protocol):
    """Reads the keys, at index 0, and the values, at index 1, of a layer in float32."""

    def read(self, layer: int, start: int, memory: torch.Tensor) -> torch.Tensor:
        """The slots from `start` on, as many as `memory` [2, kv_heads, slots, head_size] has.

        Returns a view of the cache, or `memory` with the slots in it and zeros beyond the cache's end.
        """

    def take(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """The slots of an int64 index [n]: [2, kv_heads, n, head_size]."""


@dataclass(frozen=True, eq=False)
class _Mask:
    """The keys that each row reads, [groups or none, rows, keys].

    Attributes:
        added: 0 for a key that is read, _HIDDEN for others; factor: 1 for a key that is read, 0 for others.
    """

    added: torch.Tensor
    factor: torch.Tensor


@dataclass(frozen=True, eq=False)
class _Recent:
    """Groups of recent keys of equal size: `slots` [groups * width], a mask [groups, rows, width]."""

    first: int
    stop: int
    groups: int
    slots: torch.Tensor
    mask: _Mask


@dataclass(frozen=True, eq=False)
class _Chunk:
    start: int
    slots: torch.Tensor | None
    mask: _Mask | None


@dataclass(frozen=True, eq=False)
class _Old:
    rows: torch.Tensor | None
    chunks: list[_Chunk]


@dataclass(frozen=True, eq=False)
class DevicePlan:
    """A KeyPlan on its device, which serves all layers of a forward with the same window.

    Attributes:
        least_queries: fewest queries of a product for which rows have the same bits.
    """

    rows: int
    least_queries: int
    recent: list[_Recent]
    old: list[_Old]
    _memory: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, plan: KeyPlan, device: torch.device, least_queries: int) -> DevicePlan:
        recent_groups = [_stacked(run) for run in _runs(plan)]
        hidden = [own for *_, own in recent_groups]
        indices: list[HostArray] = [slots for _, _, slots, _ in recent_groups]
        for old in plan.old:
            indices += [] if old.rows is None else [old.rows]
            indices += [chunk.slots for chunk in old.chunks if chunk.slots is not None]
            hidden += [chunk.hidden for chunk in old.chunks if chunk.hidden is not None]
        copied, masks = _copied(device, indices, hidden)
        index, mask = iter(copied), iter(masks)
        return cls(
            plan.rows,
            least_queries,
            [
                _Recent(first, stop, len(slots), next(index).flatten(), next(mask))
                for first, stop, slots, _ in recent_groups
            ],
            [
                _Old(
                    None if old.rows is None else next(index),
                    [
                        _Chunk(
                            chunk.start,
                            None if chunk.slots is None else next(index),
                            None if chunk.hidden is None else next(mask),
                        )
                        for chunk in old.chunks
                    ],
                )
                for old in plan.old
            ],
        )

    def attend(
        self,
        query: torch.Tensor,
        cached: CachedKeysValues,
        layer: int,
        kv_heads: int,
        scoring: Scoring,
    ) -> torch.Tensor:
        """The attention's output [1, heads, rows, head_size] of queries of this shape, in their dtype."""
        _, _, rows, size = query.shape
        folded = (query.float() * scoring.scaling).view(kv_heads, -1, rows, size)
        scorer = _Scorer(cached, layer, scoring.softcap, self.least_queries, self._chunk_memory(folded))
        parts = [scorer.recent(folded[:, :, recent.first : recent.stop], recent) for recent in self.recent]
        sums = parts[0] if len(parts) == 1 else _concatenated(parts)
        for old in self.old:
            sums = _with_old(sums, old, scorer, folded)
        if scoring.sinks is not None:
            sums = _with_sinks(sums, scoring.sinks)
        _, weights, values = sums
        return values.div_(weights).to(query.dtype).reshape(query.shape)

    def _chunk_memory(self, folded: torch.Tensor) -> torch.Tensor:
        """Memory for a chunk. It is kept for all layers, because allocating megabytes takes long."""
        if not self._memory:
            kv_heads, size = folded.shape[0], folded.shape[3]
            self._memory.append(torch.empty((2, kv_heads, CHUNK, size), device=folded.device))
        return self._memory[0]


@dataclass(frozen=True, eq=False)
class _Scorer:
    """The attention of one layer; queries are float32 [kv_heads, group, rows, head_size], already scaled.

    Attributes:
        memory: [2, kv_heads, CHUNK, head_size], for one chunk at a time.
    """

    cached: CachedKeysValues
    layer: int
    softcap: float | None
    least_queries: int
    memory: torch.Tensor

    def recent(self, query: torch.Tensor, recent: _Recent) -> Sums:
        """The sums over rows' recent keys, each [kv_heads, group, rows, 1 or head_size]."""
        kv_heads, group, rows, size = query.shape
        count, width = recent.groups, recent.mask.added.shape[2]
        keys, values = self.cached.take(self.layer, recent.slots).reshape(2, kv_heads * count, width, size)
        # [kv_heads * groups, queries, head_size]
        queries = query.view(kv_heads, group, count, -1, size).transpose(1, 2)
        queries = self._padded(queries.reshape(kv_heads * count, -1, size))
        scores = self._scores(queries, keys, recent.mask, group)
        largest = scores.amax(-1, keepdim=True)
        weights = _weights(scores.sub_(largest), recent.mask, group)
        ones = torch.ones((1, width, ONES), device=weights.device).expand(len(weights), -1, -1)
        total = torch.bmm(weights, ones)[..., :1]
        weighted = torch.bmm(weights, values)

        def unfolded(tensor: torch.Tensor) -> torch.Tensor:
            own = tensor[:, : group * rows // count].reshape(kv_heads, count, group, rows // count, -1)
            return own.transpose(1, 2).reshape(kv_heads, group, rows, -1)

        return unfolded(largest), unfolded(total), unfolded(weighted)

    def old(self, query: torch.Tensor, chunks: Sequence[_Chunk]) -> Sums:
        """The sums over the chunks of rows' old keys, as of `recent`."""
        kv_heads, group, rows, size = query.shape
        queries = self._padded(query.reshape(kv_heads, -1, size))
        sums: Sums | None = None
        for chunk in chunks:
            keys, values = self._read(chunk)
            scores = self._scores(queries, keys, chunk.mask, group)
            largest = scores.amax(-1, keepdim=True)
            if sums is None:
                weights = _weights(scores.sub_(largest), chunk.mask, group)
                sums = largest, weights.sum(-1, keepdim=True), torch.bmm(weights, values)
                continue
            before, total, weighted = sums
            largest = torch.maximum(before, largest)
            fading = before.sub_(largest).exp_()
            weights = _weights(scores.sub_(largest), chunk.mask, group)
            total.mul_(fading).add_(weights.sum(-1, keepdim=True))
            weighted.mul_(fading).add_(torch.bmm(weights, values))
            sums = largest, total, weighted
        assert sums is not None, "old keys have a chunk"
        largest, total, weighted = (
            part[:, : group * rows].reshape(kv_heads, group, rows, -1) for part in sums
        )
        return largest, total, weighted

    def _read(self, chunk: _Chunk) -> torch.Tensor:
        """The keys and values of a chunk, which may be in `memory`."""
        if chunk.slots is not None:
            return self.cached.take(self.layer, chunk.slots)
        return self.cached.read(self.layer, chunk.start, self.memory)

    def _scores(
        self, queries: torch.Tensor, keys: torch.Tensor, mask: _Mask | None, group: int
    ) -> torch.Tensor:
        """The masked scores [batch, queries, keys]."""
        scores = torch.bmm(queries, keys.transpose(1, 2))
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if mask is not None:
            _without_padding(scores, mask.added, group).add_(mask.added[..., None, :, :])
        return scores

    def _padded(self, queries: torch.Tensor) -> torch.Tensor:
        missing = self.least_queries - queries.shape[1]
        return pad(queries, (0, 0, 0, missing)) if missing > 0 else queries


def _without_padding(scores: torch.Tensor, mask: torch.Tensor, group: int) -> torch.Tensor:
    """A view of scores [batch, queries, keys] without padding: [.., groups or none, group, rows, keys]."""
    *groups, rows, keys = mask.shape
    return scores[:, : group * rows].view(-1, *groups, group, rows, keys)


def _weights(scores: torch.Tensor, mask: _Mask | None, group: int) -> torch.Tensor:
    """The weights of scores [batch, queries, keys] below the largest score; exactly 0 for hidden keys."""
    weights = scores.clamp_(min=LEAST_SCORE).exp_()
    if mask is not None:
        _without_padding(weights, mask.factor, group).mul_(mask.factor[..., None, :, :])
    return weights


def _with_old(recent_groups: Sums, old: _Old, scorer: _Scorer, query: torch.Tensor) -> Sums:
    """Merge the sums over recent keys with the sums over the old keys of some of the rows."""
    if old.rows is None:
        return _merged(scorer.old(query, old.chunks), recent_groups)
    some: Sums = tuple(part.index_select(2, old.rows) for part in recent_groups)  # type: ignore[assignment]
    merged = _merged(scorer.old(query.index_select(2, old.rows), old.chunks), some)
    for part, new in zip(recent_groups, merged, strict=True):
        part.index_copy_(2, old.rows, new)
    return recent_groups


def _with_sinks(sums: Sums, sinks: torch.Tensor) -> Sums:
    """Count the sinks [heads], whose values are zero, among the keys of each row."""
    largest, total, weighted = sums
    scores = sinks.float().view(*largest.shape[:2], 1, 1).expand(largest.shape)
    return _merged((scores, torch.ones_like(total), torch.zeros_like(weighted)), (largest, total, weighted))


def _merged(first: Sums, second: Sums) -> Sums:
    largest = torch.maximum(first[0], second[0])
    weights = [(part[0] - largest).exp_() for part in (first, second)]
    total = (first[1] * weights[0]).add_(second[1] * weights[1])
    return largest, total, (first[2] * weights[0]).add_(second[2] * weights[1])


def _concatenated(parts: Sequence[Sums]) -> Sums:
    largest, total, weighted = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    return largest, total, weighted


def _runs(plan: KeyPlan) -> list[list[RecentKeys]]:
    """The plan's groups of recent keys, by what is read together: all where every group has one row."""
    single = all(recent.stop - recent.first == 1 for recent in plan.recent)
    return [list(plan.recent)] if single else [[recent] for recent in plan.recent]


def _stacked(run: Sequence[RecentKeys]) -> tuple[int, int, Ints, Bools]:
    """The first row and the row behind a run of groups.

    Then their slots [groups, width], and what is hidden [groups, rows, width].
    """
    width = max(len(recent.slots) for recent in run)
    slots = np.zeros((len(run), width), dtype=np.int64)
    hidden = np.ones((len(run), run[0].stop - run[0].first, width), dtype=np.bool_)
    for index, recent in enumerate(run):
        slots[index, : len(recent.slots)] = recent.slots
        hidden[index, :, : len(recent.slots)] = recent.hidden
    return run[0].first, run[-1].stop, slots, hidden


def _copied(
    device: torch.device, indices: Sequence[HostArray], hidden: Sequence[Bools]
) -> tuple[list[torch.Tensor], list[_Mask]]:
    """The tensors of indices, and the masks of hidden keys; a GPU is given all of them in one copy."""
    if device.type == "cpu":
        masks = [(own * np.float32(_HIDDEN), (~own).astype(np.float32)) for own in hidden]
        return to_device(device, *indices), [
            _Mask(torch.from_numpy(added), torch.from_numpy(factor)) for added, factor in masks
        ]
    flat, *copied = to_device(device, np.concatenate([own.ravel() for own in hidden]), *indices)
    sizes = [own.size for own in hidden]
    added, factor = (torch.split(values, sizes) for values in (flat * _HIDDEN, flat.logical_not().float()))
    parts = zip(hidden, added, factor, strict=True)
    return copied, [_Mask(first.view(own.shape), second.view(own.shape)) for own, first, second in parts]


class OrderedAttention:
    """Attention to each row's keys in the order of their positions."""

    def __init__(self, store: KeyValueStore, windows: Windows, sizes: AttentionSizes) -> None:
        self._store = store
        self._windows = windows
        self._sizes = sizes

    @property
    def nbytes(self) -> int:
        return 0

    def seen_keys(self, context: int, tail_parents: IntArray, positions: IntArray, rows: int) -> OrderedKeys:
        tail_positions = context + draft_depths(tail_parents, context)
        seen = visible_drafts(tail_parents, context, positions.size)
        paths = CachedPaths(context, tail_positions, seen, positions).padded(rows)
        by_window = {window: self._ordered(paths, window) for window in set(self._windows)}
        return OrderedKeys(self._store, [by_window[window] for window in self._windows])

    def _ordered(self, paths: CachedPaths, window: int | None) -> DevicePlan:
        plan = plan_keys(paths, window, self._sizes.group_rows)
        return DevicePlan.of(plan, self._store.device, self._sizes.least_queries)


class OrderedKeys:
    """The SeenKeys in the order of positions."""

    def __init__(self, store: KeyValueStore, by_layer: Sequence[DevicePlan]) -> None:
        self._store, self._by_layer = store, by_layer

    def attend(self, layer: int, query: torch.Tensor, kv_heads: int, scoring: Scoring) -> torch.Tensor:
        return self._by_layer[layer].attend(query, self._store, layer, kv_heads, scoring)
