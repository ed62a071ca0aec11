"""What a decoder layer asks of attention, and what a session's cache answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from flowedge.core.arrays import IntArray

Windows = Sequence[int | None]  # of each layer, in positions


@dataclass(frozen=True, eq=False)
class Scoring:
    """How the products of a row's queries and keys become weights of values.

    Attributes:
        scaling: the factor on the products.
        softcap: the bound that tanh keeps the products within; None for no bound.
        sinks: [heads], the score of one more key of each head, whose value is zero; None for no such key.
    """

    scaling: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class Attention(Protocol):
    """Attention of the rows of one forward."""

    def store_rows(self, layer: int, keys_values: torch.Tensor) -> None:
        """Store a layer's keys and values [2, kv_heads, rows, head_size]."""

    def attend(self, layer: int, query: torch.Tensor, kv_heads: int, scoring: Scoring) -> torch.Tensor:
        """Return the attention's output for queries [1, heads, rows, head_size], in their shape and dtype.

        layer: the index of the layer in the sessions' caches.
        """


class SeenKeys(Protocol):
    """The keys that the rows of one forward see in a session's cache."""

    def attend(self, layer: int, query: torch.Tensor, kv_heads: int, scoring: Scoring) -> torch.Tensor:
        """As of Attention."""


class SessionAttention(Protocol):
    """Finds what the rows of each forward of a session see."""

    @property
    def nbytes(self) -> int:
        """The bytes of buffers that are held between forwards."""

    def seen_keys(self, context: int, tail_parents: IntArray, positions: IntArray, rows: int) -> SeenKeys:
        """Return what the last rows of the cache see.

        Args:
            tail_parents: int64 [tail], as in `visible_drafts`; positions: int64 [rows that are cached].
            rows: rows that are computed; those after the cached rows are padding.
        """
