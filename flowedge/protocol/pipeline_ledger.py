"""A session's segments that one pipeline has under way, as the draft node knows them."""

from __future__ import annotations

from collections import deque

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Prune, Segment
from flowedge.core.pipeline_trip import PipelineTrip
from flowedge.protocol.epochs import map_segment
from flowedge.protocol.row_sequence import RowSequence


class PipelineLedger:
    """The sequence of rows in a pipeline, the segments they were sent in, and the fence of what comes back.

    Attributes:
        credits: segments that may be sent now; sent: how many were.
        now: the time, in seconds, as the driver tells it.
    """

    def __init__(self, session: str, prompt: tuple[int, ...]) -> None:
        self.sequence = RowSequence(session)
        self.credits = 1
        self.sent = 0
        self.now = 0.0
        self._session = session
        self._prompt = prompt
        self._untold = 1  # credits that the strategy does not know of
        self._fence = 0
        self._maps: dict[int, Prune] = {}
        self._in_flight: deque[Segment] = deque()  # as they must come back, in the sequence's numbering
        self._returned = 0
        self._sent_at: dict[int, tuple[int, float]] = {}  # rows and time, of what is under way
        self._crossings: dict[int, PipelineTrip] = {}  # of what is back

    @property
    def all_returned(self) -> bool:
        """Whether nothing is under way."""
        return not self._in_flight

    def next_prompt_segment(self, rows: int) -> Segment | None:
        """The next chunk of the prompt, when there is one and a credit for it."""
        start = self.sequence.context
        if self.credits == 0 or start >= len(self._prompt):
            return None
        self._untold -= 1
        return self.commit(self._prompt[start : start + rows])

    def grant(self) -> None:
        """A credit has come."""
        self.credits += 1
        self._untold += 1

    def take_grants(self) -> int:
        """How many credits the strategy is told of now; each of them once."""
        untold, self._untold = self._untold, 0
        return untold

    def commit(self, tokens: tuple[int, ...]) -> Segment:
        """A segment of rows that are context at once. Raises ValueError without a credit."""
        rows = self.sequence.commit(len(tokens))
        parents = rows - 1
        parents[:1] = CONTEXT
        return self._segment(True, int(rows[0]), tokens, rows, parents)

    def append(self, tokens: tuple[int, ...], parents: tuple[int, ...]) -> Segment:
        """A segment of draft rows. Raises ValueError without a credit, or for parents that are no rows."""
        first = self.sequence.append(tokens, parents)
        positions = self.sequence.positions[first - self.sequence.context :]
        return self._segment(False, first, tokens, positions, np.array(parents, dtype=np.int64))

    def _segment(
        self,
        committed: bool,
        first: int,
        tokens: tuple[int, ...],
        positions: IntArray,
        parents: IntArray,
    ) -> Segment:
        if self.credits == 0:
            raise ValueError(f"a segment of session {self._session} was sent without a credit")
        self.credits -= 1
        self.sent += 1
        segment = Segment(
            session=self._session,
            number=self.sent - 1,
            epoch=self.sequence.epoch,
            committed=committed,
            first_row=first,
            positions=positions,
            parents=parents,
            payload=np.array(tokens, dtype=np.int32),
        )
        self._sent_at[segment.number] = (len(tokens), self.now)
        self._in_flight.append(segment)
        return segment

    def prune(self, prune: Prune) -> None:
        """The sequence was changed: what is under way must come back otherwise."""
        self._maps[prune.epoch] = prune
        self._in_flight = deque(map_segment(segment, prune)[0] for segment in self._in_flight)

    def pass_fence(self, epoch: int) -> None:
        """The in-band copy of a prune has come around. Raises ProtocolError when it is not the next."""
        if epoch != self._fence + 1 or epoch not in self._maps:
            raise ProtocolError(f"prune {epoch} came back after {self._fence}")
        self._fence = epoch
        del self._maps[epoch]

    def take_back(self, segment: Segment, row_shape: tuple[int, ...], dtype: str) -> Segment:
        """A segment has come back with rows of this shape: what lives of it, in the sequence's numbering.

        Raises ProtocolError when it does not fit what was sent.
        """
        if segment.number != self._returned or segment.number >= self.sent:
            raise ProtocolError(f"segment {segment.number} came back where {self._returned} was due")
        if segment.epoch != self._fence:
            raise ProtocolError(
                f"segment {segment.number} is of epoch {segment.epoch}, the link is at {self._fence}"
            )
        if len(segment.parents) != segment.num_rows:
            raise ProtocolError(
                f"segment {segment.number} came back with {segment.num_rows} rows and "
                f"{len(segment.parents)} parents"
            )
        wanted = (segment.num_rows, *row_shape)
        if segment.payload.shape != wanted or segment.payload.dtype.name != dtype:
            raise ProtocolError(
                f"segment {segment.number} came back as {segment.payload.dtype.name} "
                f"{list(segment.payload.shape)}, not {dtype} {list(wanted)}"
            )
        self._returned += 1
        for epoch in range(segment.epoch + 1, self.sequence.epoch + 1):
            segment, _ = map_segment(segment, self._maps[epoch])
        if not _same_rows(segment, self._in_flight.popleft()):
            raise ProtocolError(f"segment {segment.number} came back with other rows than were sent")
        rows, sent_at = self._sent_at.pop(segment.number)
        self._crossings[segment.number] = PipelineTrip(rows, self.now - sent_at)
        return segment

    def take_crossings(self, last: int) -> tuple[PipelineTrip, ...]:
        """What the segments up to this number took, in order; each is told once."""
        numbers = sorted(number for number in self._crossings if number <= last)
        return tuple(self._crossings.pop(number) for number in numbers)


def _same_rows(segment: Segment, sent: Segment) -> bool:
    return (
        segment.committed == sent.committed
        and np.array_equal(segment.positions, sent.positions)
        and np.array_equal(segment.parents, sent.parents)
        and (segment.num_rows == 0 or segment.first_row == sent.first_row)
    )
