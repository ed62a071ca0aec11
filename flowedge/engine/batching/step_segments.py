"""The segments of several sessions that enter the pipeline in the same step."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from flowedge.core.message_limits import BATCH_SEGMENTS, SEGMENT_ROWS
from flowedge.core.messages import Segment
from flowedge.engine.draft_session import DraftSession
from flowedge.protocol.outbox import DraftNodeOutbox
from flowedge.strategies.commands import Send


def send_steps(sessions: Collection[DraftSession], outbox: DraftNodeOutbox) -> None:
    """Send the segments that sessions have for the next steps."""
    for segments in _next_steps(sessions):
        outbox.in_band.put_together(segments)


def _next_steps(sessions: Collection[DraftSession]) -> Iterator[list[Segment]]:
    """Yield the segments of the next steps, in lists that are one message each."""
    while step := list(_next_step(sessions)):
        together: list[Segment] = []
        rows = 0
        for segment in step:
            if together and (rows + segment.num_rows > SEGMENT_ROWS or len(together) == BATCH_SEGMENTS):
                yield together
                together, rows = [], 0
            together.append(segment)
            rows += segment.num_rows
        yield together


def _next_step(sessions: Collection[DraftSession]) -> Iterator[Segment]:
    for session in sessions:
        for command in session.strategy.send_step():
            if isinstance(command, Send):
                yield session.draft_segment(command)
            else:
                session.grow(command)
