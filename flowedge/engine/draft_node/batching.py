"""What the sessions of a draft node do together: the jobs of a batch, and the segments of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from flowedge.core.errors import ProtocolError
from flowedge.core.message_limits import BATCH_SEGMENTS, SEGMENT_ROWS
from flowedge.core.messages import Segment
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.jobs import DraftBatch, ExtendDraft, GrowDraft
from flowedge.protocol.outbox import DraftNodeOutbox
from flowedge.strategies.commands import Send

JobT = TypeVar("JobT")


def next_draft_job(
    sessions: dict[str, DraftSession], fail: Callable[[str, ProtocolError], None]
) -> DraftBatch | None:
    """Return the jobs of all sessions that have one of the same kind; verifying goes before drafting.

    Other sessions have layers drafted in the same forward where their strategies say so. The job of a session
    that takes turns is alone in its batch. Sessions that are served go to the end of `sessions`, so that each
    comes to the front.

    Args:
        fail: called with a session whose next segment breaks the protocol.
    """
    verifying = _jobs_together(sessions, lambda session: session.next_verify(), fail)
    if verifying:
        return DraftBatch(verifying)
    drafting: list[ExtendDraft | GrowDraft] = _jobs_together(
        sessions, lambda session: session.next_draft(), fail
    )
    return DraftBatch([*drafting, *_joining_layers(sessions, drafting)]) if drafting else None


def _jobs_together(
    sessions: dict[str, DraftSession],
    take: Callable[[DraftSession], JobT | None],
    fail: Callable[[str, ProtocolError], None],
) -> list[JobT]:
    jobs: list[JobT] = []
    for name, session in list(sessions.items()):
        computed_alone = session.strategy.computed_alone
        if jobs and computed_alone:
            continue
        try:
            job = take(session)
        except ProtocolError as error:
            fail(name, error)
            continue
        if job is None:
            continue
        sessions[name] = sessions.pop(name)
        jobs.append(job)
        if computed_alone:
            break
    return jobs


def _joining_layers(
    sessions: dict[str, DraftSession], jobs: Sequence[ExtendDraft | GrowDraft]
) -> list[ExtendDraft | GrowDraft]:
    """Return the layers that sessions without a job have drafted in the forward of these jobs."""
    served = {job.session for job in jobs}
    nodes = sum(len(job.nodes) for job in jobs if isinstance(job, GrowDraft))
    if not nodes or any(sessions[name].strategy.computed_alone for name in served):
        return []
    joining: list[ExtendDraft | GrowDraft] = []
    for name, session in sessions.items():
        layer = session.strategy.join_draft(nodes) if name not in served and session.prefilled else None
        if layer is None:
            continue
        session.grow(layer)
        job = session.next_draft()
        if job is not None:
            joining.append(job)
            nodes += len(layer.nodes)
    return joining


def send_steps(
    sessions: Mapping[str, DraftSession],
    outbox: DraftNodeOutbox,
    claim_rows: Callable[[DraftSession, int], None],
) -> None:
    """Send the segments that sessions have for the next steps.

    claim_rows: has a session hold further rows; sessions may end for it, which `sessions` then lacks.
    """
    for segments in _next_steps(sessions, claim_rows):
        outbox.in_band.put_together(segments)


def _next_steps(
    sessions: Mapping[str, DraftSession], claim_rows: Callable[[DraftSession, int], None]
) -> Iterator[list[Segment]]:
    """Yield the segments of the next steps, in lists that are one message each."""
    while step := _next_step(sessions, claim_rows):
        together: list[Segment] = []
        rows = 0
        for segment in step:
            if together and (rows + segment.num_rows > SEGMENT_ROWS or len(together) == BATCH_SEGMENTS):
                yield together
                together, rows = [], 0
            together.append(segment)
            rows += segment.num_rows
        yield together


def _next_step(
    sessions: Mapping[str, DraftSession], claim_rows: Callable[[DraftSession, int], None]
) -> list[Segment]:
    """Return the segments of the next step; there is room for all of them before the first is made."""
    sends: list[tuple[DraftSession, Send]] = []
    for session in sessions.values():
        for command in session.strategy.send_step():
            if isinstance(command, Send):
                sends.append((session, command))
            else:
                session.grow(command)
    for session, send in sends:
        if session.name in sessions:
            claim_rows(session, len(send.tokens))
    return [session.draft_segment(send) for session, send in sends if session.name in sessions]
