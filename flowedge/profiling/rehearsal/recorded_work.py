"""A WorkTiming that records what a driver does, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from flowedge.core.errors import DeviceLostError
from flowedge.core.messages import Message, Segment
from flowedge.engine.activity import job_activity
from flowedge.engine.jobs import DraftJob, StageJob
from flowedge.live.compute_thread import ComputeThread, Outcome
from flowedge.live.transport.frame_link import FrameLink
from flowedge.live.work_timing import RealTime

T = TypeVar("T")


class RecordedJob(NamedTuple):
    """A job that was run; times in seconds of time.monotonic().

    Attributes:
        activity: a word of engine/activity.py.
        concluded: when everything that follows from the job was done, so that the next job could begin.
    """

    activity: str
    start: float
    end: float
    concluded: float


class RecordedSegment(NamedTuple):
    """A segment with rows that was sent: its rows, its bytes, and when it had been written."""

    rows: int
    num_bytes: int
    written: float


class RecordedWork(RealTime):
    """The product's timing, and a record of it.

    Attributes:
        jobs, segments: in the order in which they ended.
    """

    def __init__(self, compute: ComputeThread) -> None:
        super().__init__(compute)
        self.jobs: list[RecordedJob] = []
        self.segments: list[RecordedSegment] = []

    def run_job(
        self, job: StageJob | DraftJob, work: Callable[[], T], conclude: Callable[[Outcome[T]], None]
    ) -> None:
        def record(outcome: Outcome[T]) -> None:
            conclude(outcome)
            activity, _ = job_activity(job)
            self.jobs.append(RecordedJob(activity, *outcome.span, time.monotonic()))

        super().run_job(job, work, record)

    def send(
        self, link: FrameLink, message: Message, sent: Callable[[int | DeviceLostError], None]
    ) -> int | None:
        size = super().send(link, message, sent)
        if isinstance(message, Segment) and message.num_rows and size is not None:
            self.segments.append(RecordedSegment(message.num_rows, size, time.monotonic()))
        return size
