"""Decoding with static tensors, as a block of layers asks for it; `flowedge.models.graphs` does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from flowedge.models.kv.store import KeyValueStore
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.session_rows import SessionRows


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

    def reclaim(self, cache: SessionCache) -> None:
        """Give the cache's store to a later session as soon as the cache is deleted."""

    def free(self) -> None:
        """Free all static tensors, and the caches that wait for the next session."""

    def forward(
        self, part: SessionRows, should_abort: Callable[[], bool], taps: Sequence[int]
    ) -> Computed | None:
        """Compute LayerBlock.forward for checked rows; None when the block has to compute it itself."""
