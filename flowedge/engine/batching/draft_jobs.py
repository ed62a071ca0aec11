"""The next job of a draft node, over all its sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowedge.core.errors import ProtocolError
from flowedge.engine.draft_session import DraftSession
from flowedge.engine.jobs import DraftBatch, DraftWork


def next_draft_job(
    sessions: dict[str, DraftSession], fail: Callable[[str, ProtocolError], None]
) -> DraftWork | None:
    """Return the jobs of all sessions that have one of the same kind; verifying goes before drafting.

    The job of a session that takes turns is returned alone. Sessions that are served go to the end of
    `sessions`, so that each comes to the front.

    Args:
        fail: called with a session whose next segment breaks the protocol.
    """
    for take in (DraftSession.next_verify, DraftSession.next_draft):
        jobs = _jobs_together(sessions, take, fail)
        if jobs:
            return jobs[0] if len(jobs) == 1 else DraftBatch(jobs)
    return None


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
