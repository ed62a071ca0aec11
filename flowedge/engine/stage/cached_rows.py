"""A stage's record of the rows of a session that it has cached."""

from __future__ import annotations

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Prune, Segment
from flowedge.protocol.epochs import renumbered_parents, retained_from

_EMPTY = np.zeros(0, dtype=np.int64)


class CachedRows:
    """The rows that a stage has cached or is computing: the context, then the draft tail.

    A prune changes the numbering at once. The KV cache is gathered later, when the next computation starts.

    Attributes:
        context: number of committed rows.
        most: the most rows that were cached at once.
        parents, positions: int64 [tail] of the draft rows, context to cached.
        gathered_until: rows below this index are in the KV cache at their own index.
        slots: int64 [cached - gathered_until]: row gathered_until + i is in the KV cache at index slots[i].
    """

    def __init__(self, context: int = 0) -> None:
        """context: number of rows that are in the KV cache from the start."""
        self.context = self.most = context
        self.parents: IntArray = _EMPTY
        self.positions: IntArray = _EMPTY
        self.gathered_until = context
        self.slots: IntArray = _EMPTY

    @property
    def cached(self) -> int:
        return self.context + len(self.parents)

    def slots_of(self, rows: int) -> IntArray:
        """Return where the first `rows` rows, which are context, are in the KV cache: int64 [rows]."""
        gathered = min(rows, self.gathered_until)
        return np.append(np.arange(gathered), self.slots[: rows - gathered])

    def check_next(self, segment: Segment) -> None:
        """Check that a segment continues the cached rows.

        Raises:
            ProtocolError: when a row, a parent or a position does not follow from the cached rows.
        """
        first, count = segment.first_row, segment.num_rows
        if first != self.cached:
            raise ProtocolError(
                f"segment {segment.number} starts at row {first}, but {self.cached} are cached"
            )
        rows = np.arange(first, first + count)
        if segment.committed:
            if len(self.parents):
                raise ProtocolError(f"segment {segment.number} commits rows while draft rows are cached")
            if not np.array_equal(segment.positions, rows):
                raise ProtocolError(f"segment {segment.number} commits rows at the wrong positions")
            return
        parents = segment.parents
        if not bool(np.all((parents == CONTEXT) | ((parents >= self.context) & (parents < rows)))):
            raise ProtocolError(f"segment {segment.number} has a parent that is not an earlier draft row")
        positions = np.concatenate([self.positions, segment.positions])
        of_parent = positions[np.maximum(parents - self.context, 0)]
        expected = np.where(parents == CONTEXT, self.context, of_parent + 1)
        if not np.array_equal(segment.positions, expected):
            raise ProtocolError(f"segment {segment.number} has a position that is not its parent's plus one")

    def append(self, segment: Segment) -> None:
        """Add the rows of a segment whose computation starts now; the cache has been gathered for it."""
        self.gathered_until = self.context
        if segment.committed:
            self.context += segment.num_rows
            self.gathered_until = self.context
            self.slots = _EMPTY
        else:
            self.parents = np.concatenate([self.parents, segment.parents])
            self.positions = np.concatenate([self.positions, segment.positions])
            self.slots = np.arange(self.context, self.cached)
        self.most = max(self.most, self.cached)

    def apply(self, prune: Prune) -> None:
        """Keep the rows that a prune retains; its accepted rows become context."""
        kept = retained_from(prune, self.context, len(self.parents))
        before_tail = np.arange(self.context - self.gathered_until)
        self.slots = self.slots[np.append(before_tail, kept + self.context - self.gathered_until)]
        draft = kept[prune.accepted :]
        self.parents = renumbered_parents(prune, self.parents[draft])
        self.positions = self.positions[draft]
        self.context += prune.accepted

    def forward_parents(self, segment: Segment) -> IntArray:
        """Return the parents of the draft tail and of a segment of n rows behind it: int64 [tail + n]."""
        if segment.committed:
            parents = np.arange(segment.first_row - 1, segment.first_row + segment.num_rows - 1)
            parents[:1] = CONTEXT
            return parents
        return np.concatenate([self.parents, segment.parents])
