"""Attention that adds up each row's keys in the order of their positions, wherever they are cached.

Scores, weights and sums are in float32. Three properties of the device's float32 products are used, which
`attention_test` checks on the device:

- an element of a product does not depend on its row and column, nor on the number of rows;
- a product adds up at most TAIL_SLOTS terms from first to last, so that terms of zero change nothing: the
  keys of other rows between the keys of a row have the weight zero;
- a product of CHUNK terms adds up in an order that depends on CHUNK alone.

Heads that share a key head are folded into rows. The parts of a row's keys are merged as in an online
softmax: by the largest score, the sum of weights and the weighted sum of values so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch.nn.functional import pad

from flowedge.models.copies import HostArray, to_device
from flowedge.models.exact.joint_attention import LEAST_SCORE, ONES, attend_jointly, can_be_joint
from flowedge.models.exact.reading_plan import CHUNK, Bools, Ints, ReadingPlan, TailGroup

_HIDDEN = -1e30  # added to the score of a key that is not read, so that the largest score is of another key

Sums: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # largest score, weights, weighted values


class CachedKeysValues(Protocol):
    """Reads the keys, at index 0, and the values, at index 1, of a layer in float32."""

    def read(self, layer: int, start: int, room: torch.Tensor) -> torch.Tensor:
        """The slots from `start` on, as many as `room` [2, kv_heads, slots, head_size] has.

        Returns a view of the cache, or `room` with the slots in it and zeros beyond the cache's end.
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
class _Tail:
    """Consecutive tail groups of equal size: `slots` [groups * width], a mask [groups, rows, width]."""

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
class _Head:
    rows: torch.Tensor | None
    chunks: list[_Chunk]


@dataclass(frozen=True, eq=False)
class OrderedReading:
    """A ReadingPlan on its device, which serves all layers of a forward with the same window.

    Attributes:
        least_queries: fewest queries of a product for which rows have the same bits.
    """

    rows: int
    least_queries: int
    tails: list[_Tail]
    heads: list[_Head]
    _rooms: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, plan: ReadingPlan, device: torch.device, least_queries: int) -> OrderedReading:
        tails = [_stacked(run) for run in _runs(plan)]
        hidden = [own for *_, own in tails]
        indices: list[HostArray] = [slots for _, _, slots, _ in tails]
        for head in plan.heads:
            indices += [] if head.rows is None else [head.rows]
            indices += [chunk.slots for chunk in head.chunks if chunk.slots is not None]
            hidden += [chunk.hidden for chunk in head.chunks if chunk.hidden is not None]
        copied, masks = _copied(device, indices, hidden)
        index, mask = iter(copied), iter(masks)
        return cls(
            plan.rows,
            least_queries,
            [
                _Tail(first, stop, len(slots), next(index).flatten(), next(mask))
                for first, stop, slots, _ in tails
            ],
            [
                _Head(
                    None if head.rows is None else next(index),
                    [
                        _Chunk(
                            chunk.start,
                            None if chunk.slots is None else next(index),
                            None if chunk.hidden is None else next(mask),
                        )
                        for chunk in head.chunks
                    ],
                )
                for head in plan.heads
            ],
        )

    def attend(
        self,
        query: torch.Tensor,
        cached: CachedKeysValues,
        layer: int,
        kv_heads: int,
        scaling: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """The attention's output [1, heads, rows, head_size] of queries of this shape, in their dtype."""
        _, heads, rows, size = query.shape
        if self._is_joint and can_be_joint(rows, heads // kv_heads * rows, self.least_queries):
            return self._attend_jointly(query, cached, layer, kv_heads, scaling, softcap)
        folded = (query.float() * scaling).view(kv_heads, -1, rows, size)
        scorer = _Scorer(cached, layer, softcap, self.least_queries, self._room(folded))
        parts = [scorer.tail(folded[:, :, tail.first : tail.stop], tail) for tail in self.tails]
        sums = parts[0] if len(parts) == 1 else _concatenated(parts)
        for head in self.heads:
            sums = _with_head(sums, head, scorer, folded)
        _, weights, values = sums
        return values.div_(weights).to(query.dtype).reshape(query.shape)

    @cached_property
    def _is_joint(self) -> bool:
        """Whether all rows are one tail group, and their heads one head group."""
        joint_tail = len(self.tails) == 1 and self.tails[0].groups == 1
        return joint_tail and (not self.heads or (len(self.heads) == 1 and self.heads[0].rows is None))

    def _attend_jointly(
        self,
        query: torch.Tensor,
        cached: CachedKeysValues,
        layer: int,
        kv_heads: int,
        scaling: float,
        softcap: float | None,
    ) -> torch.Tensor:
        tail, room = self.tails[0], self._room_of(query, kv_heads)
        if len(self._rooms) == 1:
            self._rooms.append(room.new_ones((1, len(tail.slots), ONES)))
        return attend_jointly(
            query,
            (cached.take(layer, tail.slots), tail.mask),
            self._rooms[1],
            (_read(cached, layer, chunk, room) for chunk in self.heads[0].chunks) if self.heads else None,
            scaling,
            softcap,
            self.least_queries,
        )

    def _room(self, folded: torch.Tensor) -> torch.Tensor:
        return self._room_of(folded, len(folded))

    def _room_of(self, query: torch.Tensor, kv_heads: int) -> torch.Tensor:
        """Memory for a chunk. It is kept for all layers, because CPUs take long to allocate megabytes."""
        if not self._rooms:
            shape = (2, kv_heads, CHUNK, query.shape[3])
            self._rooms.append(torch.empty(shape, device=query.device))
        return self._rooms[0]


@dataclass(frozen=True, eq=False)
class _Scorer:
    """The attention of one layer; queries are float32 [kv_heads, group, rows, head_size], already scaled.

    Attributes:
        room: [2, kv_heads, CHUNK, head_size], for one chunk at a time.
    """

    cached: CachedKeysValues
    layer: int
    softcap: float | None
    least_queries: int
    room: torch.Tensor

    def tail(self, query: torch.Tensor, tail: _Tail) -> Sums:
        """The sums over a row's tail, each [kv_heads, group, rows, 1 or head_size]."""
        kv_heads, group, rows, size = query.shape
        count, width = tail.groups, tail.mask.added.shape[2]
        keys, values = self.cached.take(self.layer, tail.slots).reshape(2, kv_heads * count, width, size)
        # [kv_heads * groups, queries, head_size]
        queries = query.view(kv_heads, group, count, -1, size).transpose(1, 2)
        queries = self._padded(queries.reshape(kv_heads * count, -1, size))
        scores = self._scores(queries, keys, tail.mask, group)
        largest = scores.amax(-1, keepdim=True)
        weights = _weights(scores.sub_(largest), tail.mask, group)
        ones = torch.ones((1, width, ONES), device=weights.device).expand(len(weights), -1, -1)
        total = torch.bmm(weights, ones)[..., :1]
        weighted = torch.bmm(weights, values)

        def unfolded(tensor: torch.Tensor) -> torch.Tensor:
            own = tensor[:, : group * rows // count].reshape(kv_heads, count, group, rows // count, -1)
            return own.transpose(1, 2).reshape(kv_heads, group, rows, -1)

        return unfolded(largest), unfolded(total), unfolded(weighted)

    def head(self, query: torch.Tensor, chunks: Sequence[_Chunk]) -> Sums:
        """The sums over the chunks of rows' heads, as of `tail`."""
        kv_heads, group, rows, size = query.shape
        queries = self._padded(query.reshape(kv_heads, -1, size))
        sums: Sums | None = None
        for chunk in chunks:
            keys, values = _read(self.cached, self.layer, chunk, self.room)[0]
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
        assert sums is not None, "a head group has a chunk"
        largest, total, weighted = (
            part[:, : group * rows].reshape(kv_heads, group, rows, -1) for part in sums
        )
        return largest, total, weighted

    def _scores(
        self, queries: torch.Tensor, keys: torch.Tensor, mask: _Mask | None, group: int
    ) -> torch.Tensor:
        """The masked scores [batch, queries, keys]."""
        scores = torch.bmm(queries, keys.transpose(1, 2))
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if mask is not None:
            _own(scores, mask.added, group).add_(mask.added[..., None, :, :])
        return scores

    def _padded(self, queries: torch.Tensor) -> torch.Tensor:
        missing = self.least_queries - queries.shape[1]
        return pad(queries, (0, 0, 0, missing)) if missing > 0 else queries


def _read(
    cached: CachedKeysValues, layer: int, chunk: _Chunk, room: torch.Tensor
) -> tuple[torch.Tensor, _Mask | None]:
    """The keys and values of a chunk, which may be in `room`, and its mask."""
    slots = chunk.slots
    stored = cached.read(layer, chunk.start, room) if slots is None else cached.take(layer, slots)
    return stored, chunk.mask


def _own(scores: torch.Tensor, mask: torch.Tensor, group: int) -> torch.Tensor:
    """A view of scores [batch, queries, keys] without padding: [.., groups or none, group, rows, keys]."""
    *groups, rows, keys = mask.shape
    return scores[:, : group * rows].view(-1, *groups, group, rows, keys)


def _weights(scores: torch.Tensor, mask: _Mask | None, group: int) -> torch.Tensor:
    """The weights of scores [batch, queries, keys] below the largest score; exactly 0 for hidden keys."""
    weights = scores.clamp_(min=LEAST_SCORE).exp_()
    if mask is not None:
        _own(weights, mask.factor, group).mul_(mask.factor[..., None, :, :])
    return weights


def _with_head(tails: Sums, head: _Head, scorer: _Scorer, query: torch.Tensor) -> Sums:
    """Merge the sums over tails with the sums over the heads of some of the rows."""
    if head.rows is None:
        return _merged(scorer.head(query, head.chunks), tails)
    some: Sums = tuple(part.index_select(2, head.rows) for part in tails)  # type: ignore[assignment]
    merged = _merged(scorer.head(query.index_select(2, head.rows), head.chunks), some)
    for part, new in zip(tails, merged, strict=True):
        part.index_copy_(2, head.rows, new)
    return tails


def _merged(first: Sums, second: Sums) -> Sums:
    largest = torch.maximum(first[0], second[0])
    weights = [(part[0] - largest).exp_() for part in (first, second)]
    total = (first[1] * weights[0]).add_(second[1] * weights[1])
    return largest, total, (first[2] * weights[0]).add_(second[2] * weights[1])


def _concatenated(parts: Sequence[Sums]) -> Sums:
    largest, total, weighted = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    return largest, total, weighted


def _runs(plan: ReadingPlan) -> list[list[TailGroup]]:
    """The plan's tail groups, by what is read together: all of them where every group has one row."""
    single = all(tail.stop - tail.first == 1 for tail in plan.tails)
    return [list(plan.tails)] if single else [[tail] for tail in plan.tails]


def _stacked(run: Sequence[TailGroup]) -> tuple[int, int, Ints, Bools]:
    """The first row and the row behind a run of tail groups.

    Then their slots [groups, width], and what is hidden [groups, rows, width].
    """
    width = max(len(tail.slots) for tail in run)
    slots = np.zeros((len(run), width), dtype=np.int64)
    hidden = np.ones((len(run), run[0].stop - run[0].first, width), dtype=np.bool_)
    for index, tail in enumerate(run):
        slots[index, : len(tail.slots)] = tail.slots
        hidden[index, :, : len(tail.slots)] = tail.hidden
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
