"""The activities of a device, as timelines, traces and charts name them."""

from __future__ import annotations

from flowedge.core.messages import Message, Segment, SegmentBatch
from flowedge.engine.jobs import (
    DraftBatch,
    DraftJob,
    ExtendDraft,
    Forward,
    ForwardBatch,
    GrowDraft,
    SessionJob,
    StageJob,
    Verify,
)

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
    """Return the activity of a job that has been run, and its rows; a cache has 0 rows.

    A batch is a prefill if all its rows are.
    """
    match job:
        case DraftBatch():
            return (VERIFY if job.verifies else DRAFT), sum(map(job_rows, job.jobs))
        case ForwardBatch():
            prefills = all(each.committed and each.num_rows > 1 for each in job.forwards)
            return (ABORTED if job.dead else PREFILL if prefills else FORWARD), job.num_rows
        case _:
            return CACHE, 0


def job_rows(job: SessionJob) -> int:
    """Return the rows of the job of one session; a cache has 0 rows."""
    match job:
        case Forward() | Verify():
            return len(job.positions)
        case GrowDraft():
            return len(job.nodes)
        case ExtendDraft():
            return len(job.next_tokens)
        case _:
            return 0


def message_rows(message: Message) -> int:
    return message.num_rows if isinstance(message, Segment | SegmentBatch) else 0
