"""The messages on the links of a pipeline, as frozen dataclasses.

A row index counts rows of the session's sequence, in the numbering of the message's epoch.
protocol/wire.py turns messages into protobuf and back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from flowedge.core.arrays import NO_TOKEN, IntArray, Payload
from flowedge.core.request import StageReport
from flowedge.core.sampling import SamplingParams

CONTEXT = -1  # the parent of a row whose parent is the committed context


@dataclass(frozen=True)
class Drawing:
    """What the last stage needs to know to draw a session's tokens in place of the draft node.

    Attributes:
        prompt_rows: tokens of the prompt, and of an answer that goes on (see Request.given). Only the last of
            them is followed by a token that has to be drawn.
        features: whether hidden states come back: those of the prompt and of the rows on the target's path.
        max_new_tokens: tokens that are drawn at most; eos: ids after which none is drawn.
    """

    sampling: SamplingParams
    prompt_rows: int
    features: bool
    max_new_tokens: int
    eos: frozenset[int] = frozenset()

    def ends_with(self, token: int, position: int) -> bool:
        """Return whether no token is drawn after a token at an absolute position."""
        return token in self.eos or position >= self.prompt_rows + self.max_new_tokens - 1


@dataclass(frozen=True)
class Prefix:
    """Context rows of another session, with which a new session begins.

    Attributes:
        session: it is open, or its cache is kept (see Close.kept).
        rows: number of its first rows; all stages have computed them.
        shared: of these, the first ones that lie in pages of memory of both sessions; whole pages, of rows
            that have never been draft rows. The others are copied.
    """

    session: str
    rows: int
    shared: int = 0


@dataclass(frozen=True)
class Open:
    """Start of a session; every stage allocates a KV cache of `capacity` rows, once.

    Attributes:
        prefix: rows that are context from the start; None where the session begins without rows.
        drawing: for a session whose tokens the last stage draws; None where all rows come back.
        keeps_taps: whether stages keep what they tap of draft rows until a prune accepts the rows (see
            Tapped), instead of sending it on with them. The last stage of a session with `drawing` does not:
            it sends on accepted rows only.
        computed_alone: whether a stage computes the session's segments without rows of other sessions.
    """

    session: str
    capacity: int
    drawing: Drawing | None = None
    keeps_taps: bool = False
    computed_alone: bool = False
    prefix: Prefix | None = None


@dataclass(frozen=True)
class StageTime:
    """What a stage took for a segment.

    Attributes:
        rows: of the forward in which it computed the segment's rows, those of other sessions included; 0
            where it computed none.
        seconds: of that forward.
        waited: seconds that the segment waited there until the forward began.
    """

    rows: int
    seconds: float
    waited: float = 0.0


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive rows that go through the pipeline together, and the result that the last stage returns.

    Attributes:
        number: counts the session's segments from 0; each returns to the draft node once, even when empty.
        epoch: the numbering that `first_row` and `parents` are in.
        committed: whether the rows are context as soon as they are cached (prefill, autoregressive decoding).
        first_row: index of the first of the n rows.
        positions: int64 [n] absolute positions, context length + depth.
        parents: int64 [n] parent rows, CONTEXT where the parent is the last context row.
        payload: int32 [n] token ids into the first stage; after it [n, width], the hidden state followed by
            the layer inputs tapped for the drafter so far, unless stages keep them. Where the last stage has
            drawn, of draft rows only the k rows on the target's path are left: [k, width], or [k, 0].
        tokens: int64 [n], the token of each draft row on the way to a last stage that draws; None elsewhere.
        drawn: int64 [n], the token drawn after each row that the last stage has found on the target's path,
            NO_TOKEN for other rows; None where it does not draw.
        stage_times: of each stage on the way so far.
        arrived: when it arrived on the device that has it, in seconds of its clock; not a part of frames.
    """

    session: str
    number: int
    epoch: int
    committed: bool
    first_row: int
    positions: IntArray
    parents: IntArray
    payload: Payload
    tokens: IntArray | None = None
    drawn: IntArray | None = None
    stage_times: tuple[StageTime, ...] = ()
    arrived: float = 0.0

    @property
    def num_rows(self) -> int:
        return len(self.positions)

    @property
    def carried(self) -> IntArray:
        """The offsets of the rows that the payload has: int64 [k]."""
        if self.drawn is None or self.committed:
            return np.arange(self.num_rows)
        return np.flatnonzero(self.drawn != NO_TOKEN)

    def take(self, offsets: IntArray, **changes: Any) -> Segment:
        """Return the segment with only the rows at `offsets`, int64 [k], ascending.

        changes: fields that get another value, for these rows where there is a value for each.
        """
        if len(offsets) == self.num_rows:
            return replace(self, **changes) if changes else self
        every = self.drawn is None or self.committed
        taken = {
            "positions": self.positions[offsets],
            "parents": self.parents[offsets],
            "payload": self.payload.take(offsets, axis=0) if every else self._carried_of(offsets),
            "tokens": None if self.tokens is None else self.tokens[offsets],
            "drawn": None if self.drawn is None else self.drawn[offsets],
        }
        return replace(self, **(taken | changes))

    def _carried_of(self, offsets: IntArray) -> Payload:
        return self.payload[np.isin(self.carried, offsets)]

    def joined(self, following: Segment) -> Segment:
        """Return a segment of these rows and of the rows that follow, with the following segment's number."""
        return replace(
            following,
            first_row=self.first_row if self.num_rows else following.first_row,
            positions=np.concatenate([self.positions, following.positions]),
            parents=np.concatenate([self.parents, following.parents]),
            payload=np.concatenate([self.payload, following.payload]),
            drawn=_both(self.drawn, following.drawn),
        )


def _both(drawn: IntArray | None, following: IntArray | None) -> IntArray | None:
    return None if drawn is None or following is None else np.concatenate([drawn, following])


@dataclass(frozen=True, eq=False)
class SegmentBatch:
    """Segments of different sessions that a stage has computed in one forward.

    They travel as one message, so that the next stage can compute them in one forward as well.
    """

    segments: tuple[Segment, ...]

    @property
    def num_rows(self) -> int:
        return sum(segment.num_rows for segment in self.segments)


@dataclass(frozen=True, eq=False)
class Prune:
    """Change number `epoch` of a session's sequence (flowspec, section 3.3).

    Attributes:
        source_len: rows of the sequence before the change; an index at or beyond it is an error.
        context: context rows before the change (l_glo).
        accepted: number of rows at the start of `retained` that become context.
        retained: int64 [m], ascending: the accepted rows, then the subtree of the new root (I_retain).
        in_turn: whether a stage computes the segments before the change whole, and applies it after them.
            Otherwise it applies it when it hears of it, and cancels what no retained row is in.
    """

    session: str
    epoch: int
    source_len: int
    context: int
    accepted: int
    retained: IntArray
    in_turn: bool = False


@dataclass(frozen=True, eq=False)
class Tapped:
    """What a stage has tapped of draft rows that a prune accepts, from the stage to the draft node.

    Attributes:
        first: place of the values in a row that carries everything that is tapped (models/taps.py).
        rows: [n, values] of the next n accepted rows of the session.
    """

    session: str
    first: int
    rows: Payload


@dataclass(frozen=True)
class Close:
    """End of a session; sent in-band, it collects the report of each stage that it passes.

    Attributes:
        kept: context rows of the session that stay cached under its name, until a Forget; 0 for none. A stage
            that cannot keep them passes 0 on. A Close that keeps rows is sent in-band only.
    """

    session: str
    reports: tuple[StageReport, ...] = ()
    kept: int = 0


@dataclass(frozen=True)
class Forget:
    """The rows that were kept of an ended session are needed no more; sent in-band only."""

    session: str


@dataclass(frozen=True)
class Credit:
    """Permission to send the first stage one more segment of the session."""

    session: str


@dataclass(frozen=True)
class Fault:
    """Failure of a session on a device; `code` is the code of a FlowEdgeError."""

    session: str
    device: str
    code: str
    reason: str


@dataclass(frozen=True)
class Heartbeat:
    """A sign that the sender is alive, sent at regular intervals.

    Attributes:
        received: frames that the sender has received on the link so far.
    """

    sequence: int
    received: int = 0


SessionMessage: TypeAlias = Open | Segment | Prune | Tapped | Close | Forget | Credit | Fault | Heartbeat
Message: TypeAlias = SessionMessage | SegmentBatch


def session_messages(message: Message) -> tuple[SessionMessage, ...]:
    """Return the messages of single sessions that a message consists of."""
    return message.segments if isinstance(message, SegmentBatch) else (message,)


def shared_bytes(message: Message, num_bytes: int) -> list[tuple[SessionMessage, int]]:
    """Return the messages of single sessions with their shares of the bytes of a message, by their rows."""
    parts = session_messages(message)
    if not isinstance(message, SegmentBatch):
        return [(parts[0], num_bytes)]
    rows = max(message.num_rows, 1)
    return [(segment, num_bytes * segment.num_rows // rows) for segment in message.segments]


def no_rows(segment: Segment) -> Segment:
    """Return the segment without rows, which still has to go through the pipeline."""
    return segment.take(np.zeros(0, dtype=np.int64))
