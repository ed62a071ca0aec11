"""The rows of a forward of an EAGLE head, on the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import BoolArray, IntArray, Payload
from flowedge.models.attention.ordered_plan import CachedPaths
from flowedge.models.kernels.row_paths import RowPaths


@dataclass(frozen=True, eq=False)
class HeadRows(ABC):
    """n rows, which follow one another in the cache.

    Attributes:
        first: the slot of the first row.
        tokens: int64 [n].
        positions: int64 [n], the rows' RoPE positions.
    """

    first: int
    tokens: IntArray
    positions: IntArray

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    @abstractmethod
    def paths(self) -> CachedPaths:
        """What the rows see, for a mask."""

    @property
    @abstractmethod
    def slots_read(self) -> RowPaths:
        """What the rows see, for the kernels."""

    @property
    def stop(self) -> int:
        """The slot behind the last row."""
        return self.first + self.count


@dataclass(frozen=True, eq=False)
class TrueRows(HeadRows):
    """Rows of the text. Each sees all rows before it.

    Attributes:
        given: [n, width], the target's rows that the states before them are made of.
    """

    given: Payload

    @classmethod
    def at(cls, first: int, given: Payload, tokens: IntArray) -> TrueRows:
        """Rows from slot `first` on; a true row's slot is its position."""
        return cls(first, tokens, np.arange(first, first + len(tokens)), given)

    @property
    def paths(self) -> CachedPaths:
        seen = np.tri(self.count, dtype=np.bool_)
        return CachedPaths(self.first, self.positions, seen, self.positions)

    @property
    def slots_read(self) -> RowPaths:
        return RowPaths(self.positions, self.positions + 1, np.zeros_like(self.positions), _NO_SLOTS)


@dataclass(frozen=True, eq=False)
class GrownRows(HeadRows):
    """Rows of a draft tree. Each sees the true rows, its ancestors and itself.

    Attributes:
        true_rows: the number of true rows, whose slots come first.
        before: int64 [n], the slot of the row that predicts the state before each row.
        ancestors: the slots of each row's ancestors, from the root's child on.
    """

    true_rows: int
    before: IntArray
    ancestors: Sequence[tuple[int, ...]]

    @classmethod
    def below(
        cls, first: int, true_rows: int, ancestors: Sequence[tuple[int, ...]], tokens: Sequence[int]
    ) -> GrownRows:
        """Rows from slot `first` on; `ancestors` as in the attribute."""
        # A node's row has the RoPE position of its token's predecessor; the root is no row of the tree.
        positions = np.array([true_rows + len(path) for path in ancestors])
        # A row whose parent is computed beside it has the state that an ancestor before them predicts: a
        # chain takes one forward then, not one for each of its rows.
        before = np.array(
            [next((slot for slot in reversed(path) if slot < first), true_rows - 1) for path in ancestors]
        )
        return cls(first, np.array(tokens, dtype=np.int64), positions, true_rows, before, ancestors)

    @property
    def seen(self) -> BoolArray:
        """The rows of the tree that each row sees, [n, stop - true_rows]."""
        seen = np.zeros((self.count, self.stop - self.true_rows), dtype=np.bool_)
        for own, row, path in zip(seen, range(self.first, self.stop), self.ancestors, strict=True):
            own[[slot - self.true_rows for slot in (*path, row)]] = True
        return seen

    @property
    def paths(self) -> CachedPaths:
        # Without a window, the positions of the tail decide nothing.
        seen = self.seen
        tail_positions = np.full(seen.shape[1], self.true_rows)
        return CachedPaths(self.true_rows, tail_positions, seen, self.positions)

    @property
    def slots_read(self) -> RowPaths:
        slots = [slot for row, path in enumerate(self.ancestors, self.first) for slot in (*path, row)]
        linear = np.full_like(self.positions, self.true_rows)
        lengths = self.positions - self.true_rows + 1
        return RowPaths(self.positions, linear, np.cumsum(lengths) - lengths, np.array(slots))


_NO_SLOTS = np.zeros(0, dtype=np.int64)
