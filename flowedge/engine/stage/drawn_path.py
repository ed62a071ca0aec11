"""The target's path through the draft rows of a session, as far as the last stage has drawn it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flowedge.core.arrays import NO_TOKEN, IntArray
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Drawing, Prune, Segment
from flowedge.engine.draw import Draw, DrawnRows
from flowedge.protocol.epochs import renumbered


class DrawnPath:
    """The draft rows on the path, and the token drawn after the last of them.

    The draft node accepts these rows a prune later, or gives some of them up; then the path ends before them.
    """

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._rows: list[int] = []  # ascending, in the numbering of the session
        self._tokens: list[int] = []  # of each row
        self._next: int | None = None  # the token after the path; None before the first draw and the last

    def draw(self, segment: Segment) -> Draw:
        """Return what is to be drawn with the forward of a segment.

        Raises:
            ProtocolError: when draft rows have no tokens.
        """
        rows = segment.num_rows
        tokens, first = segment.tokens, self._first(segment)
        if tokens is None:
            tokens = np.zeros(rows, dtype=np.int64)
        parents = np.full(rows, -1) if segment.committed else segment.parents - segment.first_row
        drawing = self._drawing
        return Draw(drawing.sampling, drawing.features, first, tokens, np.maximum(parents, -1))

    def _first(self, segment: Segment) -> int | None:
        if segment.committed:
            last = segment.num_rows - 1
            return last if segment.first_row + last >= self._drawing.prompt_rows - 1 else None
        if segment.tokens is None:
            raise ProtocolError(f"segment {segment.number} has draft rows without their tokens")
        end = self._rows[-1] if self._rows else CONTEXT
        found = np.flatnonzero((segment.parents == end) & (segment.tokens == self._next))
        return int(found[0]) if len(found) else None

    def take(self, segment: Segment, offsets: IntArray, drawn: DrawnRows) -> Segment:
        """Go on along the rows of a forward that was drawn; return the segment that goes to the draft node.

        Args:
            segment: the rows of the forward that live; offsets: theirs in the forward, int64 [n].
        """
        indices = {offset: index for index, offset in enumerate(offsets.tolist())}
        tokens = np.full(segment.num_rows, NO_TOKEN, dtype=np.int64)
        live = 0
        for offset, token in zip(drawn.rows.tolist(), drawn.tokens.tolist(), strict=True):
            index = indices.get(offset)
            if index is None:
                break
            tokens[index] = token
            live += 1
            if not segment.committed:
                assert self._next is not None
                self._rows.append(segment.first_row + index)
                self._tokens.append(self._next)
            self._next = token
            if self._drawing.ends_with(token, int(segment.positions[index]) + 1):
                self._next = None
                break
        payload = drawn.payload if segment.committed else drawn.payload[:live]
        return replace(segment, payload=payload, tokens=None, drawn=tokens)

    def apply(self, prune: Prune) -> None:
        """Renumber the path by a prune; its accepted rows become context.

        Raises:
            ProtocolError: when other rows are accepted than are on the path.
        """
        accepted = prune.accepted
        if self._rows[:accepted] != prune.retained[:accepted].tolist():
            raise ProtocolError(f"prune {prune.epoch} accepts rows that the target has not drawn")
        kept = set(prune.retained.tolist())
        rows, tokens = self._rows[accepted:], self._tokens[accepted:]
        end = next((index for index, row in enumerate(rows) if row not in kept), len(rows))
        if end < len(rows):
            self._next = tokens[end]
        self._rows = renumbered(prune, np.array(rows[:end], dtype=np.int64)).tolist()
        self._tokens = tokens[:end]
