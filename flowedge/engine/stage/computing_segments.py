"""The segments that a stage computes in its present job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.messages import Prune, Segment
from flowedge.engine.jobs import Forward, ForwardBatch, ForwardOutcome, StageJob, StageResult
from flowedge.protocol.epochs import map_segment


@dataclass
class ComputingSegment:
    """A segment that is being computed.

    Attributes:
        segment: its live rows; offsets: int64 [n], theirs in the forward.
        ended: whether its session has ended since. A session of the same name may be open again.
    """

    forward: Forward
    segment: Segment
    offsets: IntArray
    ended: bool = False

    def live(self, computed: Payload) -> Payload:
        """Return the live rows of the rows that were computed."""
        return computed if len(self.offsets) == len(computed) else computed[self.offsets]


class ComputingSegments:
    """At most one segment of each session, in one job.

    Attributes:
        began: when the present or latest job was begun, in seconds of the stage's clock.
        seconds: that the latest job took, once that is known.
    """

    def __init__(self) -> None:
        self.began = 0.0
        self.seconds = 0.0
        self._job: ForwardBatch | None = None
        self._segments: list[ComputingSegment] = []

    @property
    def idle(self) -> bool:
        """Whether no job is being run."""
        return self._job is None

    def add(self, forward: Forward, segment: Segment) -> None:
        """Have a segment, whose payload is not needed any more, computed in the next job."""
        self._segments.append(ComputingSegment(forward, segment, np.arange(segment.num_rows)))

    def begin(self, now: float) -> ForwardBatch | None:
        """Return the job of the segments that were added, which begins now; None if there are none."""
        if self._segments:
            self.began = now
            self._job = ForwardBatch(tuple(computing.forward for computing in self._segments))
        return self._job

    def computes(self, session: str) -> bool:
        """Return whether a segment of a session is in the present job, or in the next."""
        return bool(self._of(session))

    def prune(self, prune: Prune) -> None:
        """Apply a prune to the segment of its session, if there is one."""
        for computing in self._of(prune.session):
            computing.segment, retained = map_segment(computing.segment, prune)
            computing.offsets = computing.offsets[retained]
            computing.forward.dead = computing.segment.num_rows == 0

    def kill(self, session: str) -> None:
        """Note that a session has ended, so that none of its rows lives any more."""
        for computing in self._of(session):
            computing.forward.dead = computing.ended = True

    def take(self, job: StageJob, output: StageResult) -> list[tuple[ComputingSegment, ForwardOutcome]]:
        """Remove the segments of a finished job, and return them with their outcomes.

        None are returned if it is another job.
        """
        if job is not self._job:
            return []
        segments, self._job, self._segments = self._segments, None, []
        outcomes: Sequence[ForwardOutcome] = [None] * len(segments) if output is None else output
        return list(zip(segments, outcomes, strict=True))

    def _of(self, session: str) -> list[ComputingSegment]:
        return [computing for computing in self._segments if computing.forward.session == session]
