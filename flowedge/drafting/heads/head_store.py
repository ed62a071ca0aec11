"""What a session of a draft head keeps of each row: keys and values, the predicted state, its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flowedge.drafting.heads.recall import Recall
from flowedge.models.attention.kv_store import PlainStore
from flowedge.models.families.parts import key_heads
from flowedge.models.host.lazy_zeros import lazy_zeros


@dataclass(frozen=True)
class HeadSizes:
    """The sizes of a head's rows.

    Attributes:
        recalls: whether errors are kept, which correct later predictions (see recall.py).
        layers: the number of layers.
    """

    kv_heads: int
    head_dim: int
    hidden: int
    dtype: torch.dtype
    device: torch.device
    recalls: bool
    layers: int = 1

    @classmethod
    def of(
        cls, config: Any, dtype: torch.dtype, device: torch.device, recalls: bool, layers: int = 1
    ) -> HeadSizes:
        """The sizes for a transformers config."""
        own = key_heads(config)[-1]  # of a layer that sees all positions
        return cls(own.count, own.size, int(config.hidden_size), dtype, device, recalls, layers)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        values = 2 * self.layers * self.kv_heads * self.head_dim + self.hidden
        recalled = Recall.row_bytes(self.hidden, self.dtype) if self.recalls else 0
        return values * self.dtype.itemsize + recalled


class HeadStore(PlainStore):
    """The tensors of a session.

    Attributes:
        kv: [layers, 2, kv_heads, rows, head_dim], keys at index 0 and values at 1.
        states: [rows, hidden], the state that each row predicts.
        recall: the errors of rows; None where they are not kept.
    """

    def __init__(self, sizes: HeadSizes, rows: int) -> None:
        super().__init__((sizes.layers, 2, sizes.kv_heads, rows, sizes.head_dim), sizes.dtype, sizes.device)
        self.sizes = sizes
        self.states = lazy_zeros((rows, sizes.hidden), sizes.dtype, sizes.device)
        self.recall: Recall | None = None
        if sizes.recalls:
            self.recall = Recall(rows, sizes.hidden, sizes.dtype, sizes.device)

    @property
    def rows(self) -> int:
        return self.states.shape[0]

    @property
    def nbytes(self) -> int:
        return self.rows * self.sizes.row_bytes

    def clear(self) -> None:
        super().clear()
        self.states.zero_()
        if self.recall is not None:
            self.recall.clear()

    def enlarged(self, rows: int) -> HeadStore:
        """Return a store of `rows` rows that begins with this store's rows."""
        larger = HeadStore(self.sizes, rows)
        larger.copy_rows(self, self.rows)
        return larger

    def copy_rows(self, other: HeadStore, rows: int) -> None:
        """Take over the first rows of another store of the same sizes."""
        self.kv[:, :, :, :rows] = other.kv[:, :, :, :rows]
        self.states[:rows] = other.states[:rows]
        if self.recall is not None and other.recall is not None:
            self.recall.copy_rows(other.recall, rows)
