"""What a stage knows of a session's rows: context, draft tail, and where their cache rows are."""

from __future__ import annotations

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Prune, Segment
from flowedge.protocol.epochs import renumbered_parents, retained_from

_EMPTY = np.zeros(0, dtype=np.int64)


class CachedRows:
    """The rows a stage has cached or is computing: `context` committed rows, then the draft tail.

    Prunes change the numbering at once. The cache rows are moved later, by the gather that the next
    computation starts with. Until then row gathered_until + i is in cache row slots[i].
    """

    def __init__(self) -> None:
        self.context = 0
        self.parents: IntArray = _EMPTY  # of rows context .. cached
        self.positions: IntArray = _EMPTY
        self.gathered_until = 0
        self.slots: IntArray = _EMPTY

    @property
    def cached(self) -> int:
        return self.context + len(self.parents)

    def check_next(self, segment: Segment) -> None:
        """Refuse a segment whose rows do not follow on from what is cached. Raises ProtocolError."""
        first, count = segment.first_row, segment.num_rows
        if first != self.cached:
            raise ProtocolError(f"segment {segment.number} starts at row {first}, {self.cached} are cached")
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
        """Take in the rows of a segment whose computation starts now, after the pending gather."""
        self.gathered_until = self.context
        if segment.committed:
            self.context += segment.num_rows
            self.gathered_until = self.context
            self.slots = _EMPTY
        else:
            self.parents = np.concatenate([self.parents, segment.parents])
            self.positions = np.concatenate([self.positions, segment.positions])
            self.slots = np.arange(self.context, self.cached)

    def apply(self, prune: Prune) -> None:
        """Keep what the prune retains; its accepted rows become context."""
        kept = retained_from(prune, self.context, len(self.parents))
        before_tail = np.arange(self.context - self.gathered_until)
        self.slots = self.slots[np.append(before_tail, kept + self.context - self.gathered_until)]
        draft = kept[prune.accepted :]
        self.parents = renumbered_parents(prune, self.parents[draft])
        self.positions = self.positions[draft]
        self.context += prune.accepted

    def forward_parents(self, segment: Segment) -> IntArray:
        """Parent row of rows context .. cached + n of the computation of `segment`: int64."""
        if segment.committed:
            parents = np.arange(segment.first_row - 1, segment.first_row + segment.num_rows - 1)
            parents[:1] = CONTEXT
            return parents
        return np.concatenate([self.parents, segment.parents])
