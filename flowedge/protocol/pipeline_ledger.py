"""The draft node's record of a session's segments in one pipeline."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Prune, Segment, StageTime
from flowedge.protocol.epochs import map_segment
from flowedge.protocol.row_sequence import RowSequence
from flowedge.protocol.send_window import SendWindow


@dataclass(frozen=True)
class PipelineTrip:
    """One segment's way through the pipeline.

    Attributes:
        rows: rows that the segment had when it was sent.
        seconds: from when the draft node composed the segment until it was back.
        stage_times: of each stage, in order.
    """

    rows: int
    seconds: float
    stage_times: tuple[StageTime, ...] = ()


@dataclass
class _Sent:
    """The rows of a segment in flight that no prune has removed, in the numbering of the sequence."""

    first: int
    rows: int
    committed: bool

    def prune(self, prune: Prune, retained: Sequence[int]) -> None:
        """Follow a prune; `retained` are its rows. Draft rows in flight are retained as draft rows."""
        if not self.committed:
            start, stop = (bisect_left(retained, row) for row in (self.first, self.first + self.rows))
            self.first, self.rows = prune.context + start, stop - start


class PipelineLedger:
    """A session's row sequence, its segments in flight, its credits and the epoch of returning segments.

    Attributes:
        credits: number of segments that may be sent now.
        sent: number of segments sent so far.
        now: time in seconds, set by the driver.
    """

    def __init__(self, session: str, prompt: tuple[int, ...], reused: int = 0) -> None:
        """reused: number of the prompt's first rows that are context from the start."""
        self.sequence = RowSequence(session, prompt[:reused])
        self.credits = 1
        self.sent = 0
        self.now = 0.0
        self._session = session
        self._prompt = prompt
        self._new_credits = 1  # that the strategy has not been told of
        self._window = SendWindow()
        self._fence = 0  # epoch of the last prune whose in-band copy has come back
        self._maps: dict[int, Prune] = {}
        self._in_flight: deque[_Sent] = deque()  # in the order in which they must return
        self._returned = 0
        self._sent_at: dict[int, tuple[int, float]] = {}  # rows and time of each segment in flight
        self._trips: dict[int, PipelineTrip] = {}  # of returned segments

    @property
    def all_returned(self) -> bool:
        """Whether no segment is in flight."""
        return not self._in_flight

    @property
    def cached_tokens(self) -> IntArray:
        """The tokens of the context rows that every stage has as context, for they have returned: int64 [n].

        A stage that computes the segments before a prune whole applies it after what arrives later, so such a
        prune counts when it has come back.
        """
        cached = self.sequence.context - sum(sent.rows for sent in self._in_flight if sent.committed)
        cached = min([cached, *(prune.context for prune in self._maps.values() if prune.in_turn)])
        return np.array(self.sequence.context_tokens[:cached], dtype=np.int64)

    def next_prompt_segment(self, rows: int) -> Segment | None:
        """Return the next `rows` tokens of the prompt as a segment, if tokens and a credit are left."""
        start = self.sequence.context
        if self.credits == 0 or start >= len(self._prompt):
            return None
        self._new_credits -= 1
        return self.commit(self._prompt[start : start + rows])

    def grant(self) -> None:
        """Take in a credit of the first stage, and allow as many segments as the window has."""
        self._window.credit(self.now)
        more = max(self._window.segments - self._window.uncredited - self.credits, 0)
        self.credits += more
        self._new_credits += more

    def take_grants(self) -> int:
        """Return the number of credits since the last call."""
        new, self._new_credits = self._new_credits, 0
        return new

    def commit(self, tokens: tuple[int, ...]) -> Segment:
        """Return a segment of rows that are context at once; it takes a credit."""
        rows = self.sequence.commit(tokens)
        parents = rows - 1
        parents[:1] = CONTEXT
        return self._segment(True, int(rows[0]), tokens, rows, parents)

    def append(self, tokens: tuple[int, ...], parents: tuple[int, ...]) -> Segment:
        """Return a segment of draft rows with their parent rows, or CONTEXT; it takes a credit."""
        first = self.sequence.append(tokens, parents)
        positions, _ = self.sequence.places(first, len(tokens))
        places = np.array([positions, parents], dtype=np.int64)
        return self._segment(False, first, tokens, places[0], places[1])

    def _segment(
        self, committed: bool, first: int, tokens: tuple[int, ...], positions: IntArray, parents: IntArray
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
        self._window.send(segment.number, self.now)
        self._in_flight.append(_Sent(first, len(tokens), committed))
        return segment

    def prune(self, prune: Prune) -> None:
        """Apply a prune of the sequence to the segments in flight."""
        self._maps[prune.epoch] = prune
        retained = prune.retained.tolist()
        for sent in self._in_flight:
            sent.prune(prune, retained)

    def pass_fence(self, epoch: int) -> None:
        """Take in the returned in-band copy of prune `epoch`.

        Raises:
            ProtocolError: when prune `epoch` is not the next to return.
        """
        if epoch != self._fence + 1 or epoch not in self._maps:
            raise ProtocolError(f"prune {epoch} came back, but {self._fence + 1} was due")
        self._fence = epoch
        del self._maps[epoch]

    def take_back(self, segment: Segment, row_shape: tuple[int, ...], dtype: str) -> Segment:
        """Take in a returned segment.

        Args:
            row_shape: shape that each row of the payload must have.
            dtype: name of the dtype that the payload must have.

        Returns:
            The segment of the rows that no prune has removed, in the current numbering.

        Raises:
            ProtocolError: when the segment does not fit the segment that was sent.
        """
        if segment.number != self._returned or segment.number >= self.sent:
            raise ProtocolError(f"segment {segment.number} came back, but {self._returned} was due")
        if segment.epoch != self._fence:
            raise ProtocolError(
                f"segment {segment.number} is of epoch {segment.epoch}, but the link is at {self._fence}"
            )
        if len(segment.parents) != segment.num_rows:
            raise ProtocolError(
                f"segment {segment.number} came back with {segment.num_rows} rows and "
                f"{len(segment.parents)} parents"
            )
        wanted = (len(segment.carried), *row_shape)
        if segment.payload.shape != wanted or segment.payload.dtype.name != dtype:
            raise ProtocolError(
                f"segment {segment.number} came back as {segment.payload.dtype.name} "
                f"{list(segment.payload.shape)}, not {dtype} {list(wanted)}"
            )
        self._returned += 1
        for epoch in range(segment.epoch + 1, self.sequence.epoch + 1):
            segment, _ = map_segment(segment, self._maps[epoch])
        if not self._same_rows(segment, self._in_flight.popleft()):
            raise ProtocolError(f"segment {segment.number} came back with other rows than were sent")
        self._window.take_back(segment.number, segment.stage_times[0] if segment.stage_times else None)
        rows, sent_at = self._sent_at.pop(segment.number)
        self._trips[segment.number] = PipelineTrip(rows, self.now - sent_at, segment.stage_times)
        return segment

    def take_trips(self, last: int) -> tuple[PipelineTrip, ...]:
        """Return and forget the trips of returned segments up to number `last`, in order."""
        numbers = sorted(number for number in self._trips if number <= last)
        return tuple(self._trips.pop(number) for number in numbers)

    def _same_rows(self, segment: Segment, sent: _Sent) -> bool:
        if segment.committed != sent.committed or segment.num_rows != sent.rows:
            return False
        if not sent.rows:
            return True
        positions, parents = self.sequence.places(sent.first, sent.rows)
        return (
            segment.first_row == sent.first
            and segment.positions.tolist() == positions
            and segment.parents.tolist() == parents
        )
