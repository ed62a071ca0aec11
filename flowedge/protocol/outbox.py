"""Messages that wait to be sent, to which prunes still apply."""

from __future__ import annotations

from collections import deque

from flowedge.core.messages import Close, Message, Prune, Segment
from flowedge.protocol.epochs import map_segment


class Outbox:
    """A first-in first-out queue for an in-band link."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message) -> None:
        self._messages.append(message)

    def pop(self) -> Message | None:
        return self._messages.popleft() if self._messages else None

    def prune(self, prune: Prune) -> int:
        """Map the session's segments to the prune's epoch and put the prune before the first of them.

        Returns:
            The number of rows that the segments lost.
        """
        trimmed = 0
        queue: deque[Message] = deque()
        placed = False
        for message in self._messages:
            if isinstance(message, Segment) and message.session == prune.session:
                if not placed:
                    queue.append(prune)
                    placed = True
                mapped, _ = map_segment(message, prune)
                trimmed += message.num_rows - mapped.num_rows
                queue.append(mapped)
            else:
                queue.append(message)
        if not placed:
            queue.append(prune)
        self._messages = queue
        return trimmed

    def drop_segments(self, session: str) -> None:
        self._messages = deque(
            m for m in self._messages if not (isinstance(m, Segment) and m.session == session)
        )


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
        """Send a prune in-band and express."""
        self.in_band.prune(prune)
        self.express.append(prune)

    def close(self, session: str) -> None:
        """Send the end of a session in-band and express; drop its segments."""
        self.in_band.drop_segments(session)
        self.in_band.put(Close(session))
        self.express.append(Close(session))
