"""Whose prompt goes on next, and by how many rows, so that the answers of other sessions keep coming."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.messages import Segment, StageTime
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.protocol.outbox import DraftNodeOutbox
from flowedge.strategies.auto.row_times import RowTimes
from flowedge.strategies.events import TARGET

_LEAST_ROWS = 16  # of a chunk, however long it makes a forward
# By how much a chunk may lengthen the forwards of sessions that decode. Where a stage computes the chunk
# apart, a token takes three times as long at most.
_PACE = 2.0
_FADE = 0.9
_CHUNKS_AHEAD = 4  # that may be on their way, for each stage and the draft node: also over links with a delay


class PrefillOrder:
    """Sends the prompts of all sessions in chunks, one session after the other.

    The chunks that wait in front of the first stage have as many rows together as one chunk may have. While
    sessions decode, that is as many as make no stage's forward longer than `_PACE` times what it is without.
    The rows that have not come back are bounded as well, so that a later stage which is slower than the first
    one has a part of a long prompt before it, and not the whole.
    """

    def __init__(self, most_rows: int, num_stages: int, outbox: DraftNodeOutbox) -> None:
        """most_rows: of a chunk; num_stages, outbox: of the target's route."""
        self._most_rows = most_rows
        self._most_on_their_way = _CHUNKS_AHEAD * (num_stages + 1) * most_rows
        self._on_their_way: dict[str, int] = {}  # rows of prompts that have not come back
        self._outbox = outbox
        self._sessions: dict[str, DraftSession] = {}  # all that are open, the next to send its prompt first
        self._ahead: dict[str, int] = {}  # rows of chunks that the first stage has not begun
        self._stages: list[RowTimes] = []
        self._decode_rows = 1.0  # a mean, of a segment of a session that decodes

    def join(self, session: DraftSession) -> None:
        """Take in a session that has been opened, and send what is due of its prompt."""
        self._sessions[session.name] = session
        self.send()

    def leave(self, name: str) -> None:
        """Forget a session that has ended."""
        self._sessions.pop(name, None)
        self._ahead.pop(name, None)
        self._on_their_way.pop(name, None)
        self.send()

    def taken_up(self, name: str) -> None:
        """Take note that the first stage has begun a segment of a session, which now comes last."""
        self._ahead.pop(name, None)
        if name in self._sessions:
            self._sessions[name] = self._sessions.pop(name)
        self.send()

    def observe(self, segment: Segment) -> None:
        """Take in the times of a segment that has come back."""
        if not segment.committed and segment.num_rows:
            self._decode_rows = _FADE * self._decode_rows + (1 - _FADE) * segment.num_rows
        self._observe_times(segment.stage_times)
        rows = self._on_their_way.get(segment.session, 0)
        if segment.committed and rows:
            self._on_their_way[segment.session] = max(0, rows - segment.num_rows)
            self.send()

    def _observe_times(self, times: Sequence[StageTime]) -> None:
        while len(self._stages) < len(times):
            self._stages.append(RowTimes())
        for stage, time in zip(self._stages, times, strict=False):
            if time.rows:
                stage.observe(time.rows, time.seconds)

    def send(self) -> None:
        """Send chunks of prompts, as many as may wait in front of the first stage."""
        if all(session.prefilled for session in self._sessions.values()):
            return
        most = self._chunk_rows()
        for name, session in self._sessions.items():
            free = most - sum(self._ahead.values())
            if self._ahead and free < min(_LEAST_ROWS, most):
                return
            if sum(self._on_their_way.values()) >= self._most_on_their_way:
                return
            segment = session.ledger(TARGET).next_prompt_segment(max(free, 1))
            if segment is not None:
                self._ahead[name] = segment.num_rows
                self._on_their_way[name] = self._on_their_way.get(name, 0) + segment.num_rows
                self._outbox.put(segment)

    def _chunk_rows(self) -> int:
        """Return the most rows of a chunk now."""
        decoding = sum(session.prefilled for session in self._sessions.values())
        if not decoding or not self._stages:
            return self._most_rows
        usual = max(round(decoding * self._decode_rows), 1)
        rows = np.arange(usual, usual + self._most_rows + 1, dtype=np.float64)
        allowed = self._most_rows
        for stage in self._stages:
            seconds = stage.times(rows)
            allowed = min(allowed, int(np.count_nonzero(seconds[1:] <= _PACE * seconds[0])))
        return max(allowed, min(_LEAST_ROWS, self._most_rows))
