"""The words for what a device does, as timelines, traces and charts use them."""

from __future__ import annotations

from flowedge.core.messages import Message, Segment
from flowedge.engine.jobs import DraftJob, ExtendDraft, Forward, GrowDraft, StageJob, Verify

DRAFT = "draft"
VERIFY = "verify"
PREFILL = "prefill"
FORWARD = "forward"
ABORTED = "aborted"  # a forward of which no row was wanted any more; it stops between layers
CACHE = "cache"  # a cache allocated or freed
TRANSFER = "transfer"  # an in-band message handed to the link
PRUNE = "prune"  # a prune arrived on the express lane: a moment, not a stretch
REQUEST = "request"  # a request arrived at the draft node: a moment as well

COMPUTING = (DRAFT, VERIFY, PREFILL, FORWARD, ABORTED, CACHE)
ACTIVITIES = (*COMPUTING, TRANSFER, PRUNE, REQUEST)


def job_activity(job: StageJob | DraftJob) -> tuple[str, int]:
    """What a job that has been run was, and its rows; 0 rows for a cache."""
    match job:
        case Forward(dead=True):
            return ABORTED, job.num_rows
        case Forward():
            return (PREFILL if job.committed and job.num_rows > 1 else FORWARD), job.num_rows
        case GrowDraft():
            return DRAFT, len(job.nodes)
        case ExtendDraft():
            return DRAFT, len(job.next_tokens)
        case Verify():
            return VERIFY, len(job.positions)
        case _:
            return CACHE, 0


def message_rows(message: Message) -> int:
    """The rows that a message carries."""
    return message.num_rows if isinstance(message, Segment) else 0
