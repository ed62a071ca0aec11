"""What a stage computes next: changes of caches, then the segments of several sessions together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flowedge.core.errors import ProtocolError
from flowedge.core.messages import Prune, Segment
from flowedge.engine.jobs import DropCache, ForwardBatch, OpenCache, StageJob
from flowedge.engine.stage.computing_segments import ComputingSegments
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.engine.stage.waiting_segments import ForwardTimes, WaitingSegments


class StageBatching:
    """The segments that wait on a stage and those that it computes, and the changes of caches before them.

    Attributes:
        waiting: segments that wait to be computed; computing: segments of the present job.
    """

    def __init__(self, spec: StageSpec) -> None:
        self.waiting = WaitingSegments(spec.max_rows)
        self.computing = ComputingSegments()
        self._max_queue = spec.max_queue
        self._cache_jobs: deque[OpenCache | DropCache] = deque()
        self._times = ForwardTimes()

    def change_cache(self, job: OpenCache | DropCache) -> None:
        """Have a cache allocated or freed before anything else is computed."""
        self._cache_jobs.append(job)

    def put(self, segment: Segment) -> None:
        """Add a segment that has arrived. Raises ProtocolError when too many wait."""
        if len(self.waiting) >= self._max_queue:
            raise ProtocolError(f"{self._max_queue} segments wait here already")
        self.waiting.put(segment)

    def next_job(
        self, now: float, computed_alone: Callable[[str], bool], start: Callable[[Segment], None]
    ) -> StageJob | None:
        """Return the next job, once the job before it is finished; None if there is nothing to do.

        Args:
            now: seconds of the stage's clock.
            computed_alone: whether a session is computed alone.
            start: adds a segment to the next job, by `computing.add`, or drops it.
        """
        if self._cache_jobs:
            return self._cache_jobs.popleft()
        while self.waiting and self.computing.idle:
            for segment in self.waiting.take(computed_alone, self._times.worth):
                start(segment)
            if (job := self.computing.begin(now)) is not None:
                return job
        return None

    def ran(self, job: StageJob, seconds: float) -> None:
        """Take in the time of a job that is about to be taken back."""
        self.computing.seconds = seconds
        if isinstance(job, ForwardBatch) and not job.dead:
            self._times.observe(job.num_rows, seconds)

    def holds_before(self, prune: Prune) -> bool:
        """Return whether segments of a prune's session, sent before it, wait or are computed."""
        waiting = any(s.session == prune.session and s.epoch < prune.epoch for s in self.waiting)
        return waiting or self.computing.computes(prune.session)

    def prune(self, prune: Prune, trim: Callable[[Segment], Segment]) -> None:
        """Apply a prune to the segments of its session; `trim` returns what is left of a waiting segment.

        Segments that were sent after it are in its numbering already.
        """
        self.waiting.replace(prune.session, lambda s: trim(s) if s.epoch < prune.epoch else s)
        self.computing.prune(prune)

    def end(self, session: str) -> None:
        """Drop the waiting segments of a session that has ended; what is computed of it lives no more."""
        self.waiting.drop(session)
        self.computing.kill(session)
