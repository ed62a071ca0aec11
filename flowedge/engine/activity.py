"""The activities of a device, as timelines, traces and charts name them."""

from __future__ import annotations

from flowedge.core.messages import Message, Segment
from flowedge.engine.jobs import DraftJob, ExtendDraft, Forward, GrowDraft, StageJob, Verify

DRAFT = "draft"
VERIFY = "verify"
PREFILL = "prefill"
FORWARD = "forward"
ABORTED = "aborted"  # a forward that stopped between layers, because none of its rows lived any more
CACHE = "cache"  # a cache allocated or freed
TRANSFER = "transfer"  # an in-band message handed to the link
PRUNE = "prune"  # a prune arrived on an express link; a momentary event
REQUEST = "request"  # a request arrived at the draft node; a momentary event

COMPUTING = (DRAFT, VERIFY, PREFILL, FORWARD, ABORTED, CACHE)
ACTIVITIES = (*COMPUTING, TRANSFER, PRUNE, REQUEST)


def job_activity(job: StageJob | DraftJob) -> tuple[str, int]:
    """Return the activity of a job that has been run, and its rows; a cache has 0 rows."""
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
    return message.num_rows if isinstance(message, Segment) else 0
