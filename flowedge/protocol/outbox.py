"""Messages that wait to be sent, to which prunes still apply."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from flowedge.core.messages import Close, Message, Prune, Segment, SegmentBatch, session_messages
from flowedge.protocol.epochs import map_segment


class Outbox:
    """A first-in first-out queue for an in-band link."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message) -> None:
        self._messages.append(message)

    def put_together(self, segments: Sequence[Segment]) -> None:
        """Add segments of different sessions, which are sent as one message."""
        if segments:
            self._messages.append(_together(segments))

    def pop(self) -> Message | None:
        return self._messages.popleft() if self._messages else None

    def prune(self, prune: Prune) -> int:
        """Map the session's segments to the prune's epoch and put the prune before the first of them.

        A segment that is part of a batch has the prune before the batch. A prune that takes its turn is put
        behind all segments, which stay as they are, also when another prune follows.

        Returns:
            The number of rows that the segments lost.
        """
        if prune.in_turn:
            self._messages.append(prune)
            return 0
        trimmed = 0
        queue: deque[Message] = deque()
        placed = False
        for message in self._messages:
            segments = [s for s in _segments_of(message, prune.session) if s.epoch == prune.epoch - 1]
            if not segments:
                queue.append(message)
                continue
            if not placed:
                queue.append(prune)
                placed = True
            mapped = {segment: map_segment(segment, prune)[0] for segment in segments}
            trimmed += sum(old.num_rows - new.num_rows for old, new in mapped.items())
            queue.append(_together([mapped.get(part, part) for part in _parts(message)]))
        if not placed:
            queue.append(prune)
        self._messages = queue
        return trimmed

    def drop_segments(self, session: str) -> None:
        queue: deque[Message] = deque()
        for message in self._messages:
            dropped = _segments_of(message, session)
            if not dropped:
                queue.append(message)
            elif left := [part for part in _parts(message) if part not in dropped]:
                queue.append(_together(left))
        self._messages = queue


def _parts(message: Message) -> list[Segment]:
    return [part for part in session_messages(message) if isinstance(part, Segment)]


def _segments_of(message: Message, session: str) -> list[Segment]:
    """Return the segments of a session in a message, of which there is at most one."""
    return [part for part in _parts(message) if part.session == session]


def _together(segments: Sequence[Segment]) -> Message:
    return segments[0] if len(segments) == 1 else SegmentBatch(tuple(segments))


class DraftNodeOutbox:
    """Messages that wait to be sent from the draft node to one pipeline.

    Attributes:
        in_band: for the first stage.
        express: for each of the stages.
    """

    def __init__(self) -> None:
        self.in_band = Outbox()
        self.express: deque[Message] = deque()

    def put(self, message: Message) -> None:
        self.in_band.put(message)

    def prune(self, prune: Prune) -> None:
        """Send a prune in-band, and express too unless it takes its turn."""
        self.in_band.prune(prune)
        if not prune.in_turn:
            self.express.append(prune)

    def keep(self, session: str, rows: int) -> None:
        """Send the end of a session, whose first rows stages keep, in-band alone; drop its segments.

        Prunes of the session may still be on their way; an express Close could be there before them.
        """
        self.in_band.drop_segments(session)
        self.in_band.put(Close(session, kept=rows))

    def take_express(self) -> list[Message]:
        """Remove and return the express messages."""
        taken = list(self.express)
        self.express.clear()
        return taken

    def clear(self) -> None:
        """Drop all messages."""
        self.in_band = Outbox()
        self.express.clear()

    def close(self, session: str) -> None:
        """Send the end of a session in-band and express; drop its segments."""
        self.in_band.drop_segments(session)
        self.in_band.put(Close(session))
        self.express.append(Close(session))
