"""The caches of several sessions whose rows one forward computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.session_rows import SessionRows

# What a layer's attention is given as its mask: for each session the number of its rows, its mask, its cache.
SessionMasks = list[tuple[int, Any, SessionCache]]


class JoinedCache:
    """The `past_key_values` of rows of several sessions, of which each has its own cache.

    Rows of padding belong to the last session.
    """

    def __init__(self, parts: Sequence[SessionRows], padded_rows: int) -> None:
        """Join the caches of parts, whose rows are followed by padding up to `padded_rows`.

        Raises:
            CapacityError: when the rows of a part do not fit its cache.
        """
        self._parts = parts
        self._counts = [part.count for part in parts]
        self._counts[-1] += padded_rows - sum(self._counts)
        for part in parts:
            part.cache.begin(part.cached, part.count)

    def prepare(self) -> list[SessionMasks]:
        """Return the `attention_mask` of each layer."""
        by_session = [
            part.cache.prepare(part.context, part.tail_parents, part.positions, count)
            for part, count in zip(self._parts, self._counts, strict=True)
        ]
        return [
            [
                (count, mask, part.cache)
                for part, count, mask in zip(self._parts, self._counts, masks, strict=True)
            ]
            for masks in zip(*by_session, strict=True)
        ]

    def store_rows(self, keys_values: torch.Tensor, layer: int) -> None:
        """Store a layer's keys and values [2, kv_heads, rows, head_size]."""
        for part, own in self._divided(keys_values):
            part.cache.store_rows(own, layer)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's keys and values [1, kv_heads, rows, head_size], and return them."""
        for (part, own_keys), (_part, own_values) in zip(
            self._divided(keys), self._divided(values), strict=True
        ):
            part.cache.update(own_keys, own_values, layer)
        return keys, values

    def _divided(self, rows: torch.Tensor) -> Iterator[tuple[SessionRows, torch.Tensor]]:
        """Each part with its own of the rows [.., .., rows, head_size]."""
        return zip(self._parts, rows.split_with_sizes(self._counts, 2), strict=True)


def prepared_cache(
    parts: Sequence[SessionRows], padded_rows: int
) -> tuple[SessionCache | JoinedCache, list[Any]]:
    """Return the `past_key_values` and each layer's `attention_mask` for the rows of one part or more.

    Raises:
        CapacityError, ProtocolError: as of SessionCache.
    """
    if len(parts) > 1:
        joined = JoinedCache(parts, padded_rows)
        return joined, joined.prepare()
    (part,) = parts
    part.cache.begin(part.cached, part.count)
    return part.cache, part.cache.prepare(part.context, part.tail_parents, part.positions, padded_rows)
