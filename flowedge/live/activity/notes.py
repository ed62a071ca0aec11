"""What happened in a pipeline, noted while somebody watches, in the order in which it happened.

Noting costs the draft node one append. What the notes mean is found out later, outside of its lock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from flowedge.core.arrays import IntArray
from flowedge.core.messages import Message, Open, Prune, Segment, StageTime, session_messages
from flowedge.core.request import Tokens
from flowedge.drafting.drafter import DraftLayer
from flowedge.engine.activity import CACHE, job_activity
from flowedge.engine.jobs import DraftJob, GrowDraft, sessions_of

MAX_NOTES = 20_000


@dataclass(frozen=True)
class SessionBegan:
    """The Open of a session left the draft node."""

    session: str
    at: float


@dataclass(frozen=True)
class SessionEnded:
    """Why a session ended: a finish reason, or the code of an error."""

    session: str
    at: float
    reason: str


@dataclass(frozen=True)
class TokensOut:
    """Tokens that a session put out."""

    session: str
    at: float
    tokens: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LayerGrown:
    """A layer of a draft tree; the arrays are those of the job and of its result.

    Attributes:
        names, parents, tokens: int64 [f] of the nodes whose children were computed.
    """

    session: str
    at: float
    growth: int
    names: IntArray
    parents: IntArray
    tokens: IntArray
    layer: DraftLayer


@dataclass(frozen=True, eq=False)
class SegmentLeft:
    """A segment left the draft node.

    Attributes:
        tokens, parents: of the rows of a segment of draft rows, from row `first_row` on; None for a segment
            of committed rows.
    """

    session: str
    at: float
    number: int
    first_row: int
    tokens: IntArray | None
    parents: IntArray | None


@dataclass(frozen=True, eq=False)
class RowsPruned:
    """A prune left the draft node; `retained` and `context` are as in Prune."""

    session: str
    at: float
    context: int
    accepted: int
    retained: IntArray


@dataclass(frozen=True)
class SegmentBack:
    """A segment came back from the last stage, with this many bytes of payload."""

    session: str
    at: float
    number: int
    rows: int
    committed: bool
    stage_times: tuple[StageTime, ...]
    num_bytes: int


@dataclass(frozen=True)
class DraftNodeWork:
    """A job of the draft node itself; `kind` is a word of engine/activity.py."""

    session: str
    kind: str
    start: float
    at: float
    rows: int


@dataclass(frozen=True)
class BytesLeft:
    """The link to the first stage took a message of this many bytes."""

    at: float
    num_bytes: int


Note: TypeAlias = (
    SessionBegan
    | SessionEnded
    | TokensOut
    | LayerGrown
    | SegmentLeft
    | RowsPruned
    | SegmentBack
    | DraftNodeWork
    | BytesLeft
)


class ActivityNotes:
    """The notes since they were taken last, in a bounded memory. Times are seconds of one monotonic clock.

    Methods are called in any thread; appending to a deque is one step.
    """

    def __init__(self, max_notes: int = MAX_NOTES) -> None:
        self._max_notes = max_notes
        self._notes: deque[Note] = deque()
        self._lost = False

    def take(self) -> tuple[list[Note], bool]:
        """Return the notes since the last call, and whether later ones were left out."""
        lost, self._lost = self._lost, False
        notes = [self._notes.popleft() for _ in range(len(self._notes))]
        return notes, lost

    def put_out(self, tokens: Tokens) -> None:
        self._add(TokensOut(tokens.session, tokens.drawn, tokens.token_ids))

    def ended(self, session: str, reason: str, now: float) -> None:
        self._add(SessionEnded(session, now, reason))

    def grown(self, job: GrowDraft, layer: DraftLayer, now: float) -> None:
        self._add(LayerGrown(job.session, now, job.growth, job.nodes, job.parents, job.tokens, layer))

    def worked(self, job: DraftJob, start: float, end: float) -> None:
        kind, rows = job_activity(job)
        if kind != CACHE:
            self._add(DraftNodeWork(sessions_of(job)[0], kind, start, end, rows))

    def leaves(self, message: Message, now: float) -> None:
        """Note an in-band message to the first stage."""
        for part in session_messages(message):
            if isinstance(part, Segment):
                tokens, parents = (None, None) if part.committed else (part.payload, part.parents)
                self._add(SegmentLeft(part.session, now, part.number, part.first_row, tokens, parents))
            elif isinstance(part, Prune):
                self._add(RowsPruned(part.session, now, part.context, part.accepted, part.retained))
            elif isinstance(part, Open):
                self._add(SessionBegan(part.session, now))

    def left(self, num_bytes: int, now: float) -> None:
        self._add(BytesLeft(now, num_bytes))

    def came_back(self, segment: Segment, now: float) -> None:
        self._add(
            SegmentBack(
                segment.session,
                now,
                segment.number,
                segment.num_rows,
                segment.committed,
                segment.stage_times,
                segment.payload.nbytes,
            )
        )

    def _add(self, note: Note) -> None:
        if len(self._notes) >= self._max_notes:
            self._lost = True
        else:
            self._notes.append(note)
