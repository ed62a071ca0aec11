"""The next job of a draft node, over all its sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from flowedge.core.errors import ProtocolError
from flowedge.engine.draft_session import DraftSession
from flowedge.engine.jobs import DraftBatch, DraftWork, GrowDraft, sessions_of


def next_draft_job(
    sessions: dict[str, DraftSession], fail: Callable[[str, ProtocolError], None]
) -> DraftWork | None:
    """Return the jobs of all sessions that have one of the same kind; verifying goes before drafting.

    Other sessions have layers drafted in the same forward where their strategies say so. The job of a session
    that takes turns is returned alone. Sessions that are served go to the end of `sessions`, so that each
    comes to the front.

    Args:
        fail: called with a session whose next segment breaks the protocol.
    """
    jobs = _jobs_together(sessions, lambda session: session.next_verify(), fail)
    if not jobs:
        jobs = _jobs_together(sessions, lambda session: session.next_draft(), fail)
        jobs += _joining_layers(sessions, jobs)
    return DraftBatch(jobs) if len(jobs) > 1 else next(iter(jobs), None)


def _jobs_together(
    sessions: dict[str, DraftSession],
    take: Callable[[DraftSession], Any],
    fail: Callable[[str, ProtocolError], None],
) -> list[Any]:
    jobs: list[Any] = []
    for name, session in list(sessions.items()):
        takes_turns = session.strategy.takes_turns
        if jobs and takes_turns:
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
        if takes_turns:
            break
    return jobs


def _joining_layers(sessions: dict[str, DraftSession], jobs: Sequence[DraftWork]) -> list[DraftWork]:
    """Return the layers that sessions without a job have drafted in the forward of these jobs."""
    served = set(chain.from_iterable(map(sessions_of, jobs)))
    nodes = sum(len(job.nodes) for job in jobs if isinstance(job, GrowDraft))
    if not nodes or any(sessions[name].strategy.takes_turns for name in served):
        return []
    joining: list[DraftWork] = []
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
