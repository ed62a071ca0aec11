"""The activities of a device, as timelines, traces and charts name them."""

from __future__ import annotations

from flowedge.core.messages import Message, Segment, SegmentBatch
from flowedge.engine.jobs import (
    DraftBatch,
    DraftWork,
    ExtendDraft,
    Forward,
    ForwardBatch,
    GrowDraft,
    StageJob,
    Verify,
    forwards_of,
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


def job_activity(job: StageJob | DraftWork) -> tuple[str, int]:
    """Return the activity of a job that has been run, and its rows; a cache has 0 rows.

    A batch is a prefill if all its rows are.
    """
    match job:
        case DraftBatch():
            parts = [job_activity(part) for part in job.jobs]
            return parts[0][0], sum(rows for _, rows in parts)
        case Forward() | ForwardBatch():
            prefills = all(each.committed and each.num_rows > 1 for each in forwards_of(job))
            return (ABORTED if job.dead else PREFILL if prefills else FORWARD), job.num_rows
        case GrowDraft():
            return DRAFT, len(job.nodes)
        case ExtendDraft():
            return DRAFT, len(job.next_tokens)
        case Verify():
            return VERIFY, len(job.positions)
        case _:
            return CACHE, 0


def message_rows(message: Message) -> int:
    return message.num_rows if isinstance(message, Segment | SegmentBatch) else 0
