"""The state machine of one pipeline stage: messages in, jobs and messages out.

It opens no socket, reads no clock and starts no thread. A driver hands messages over with `receive`. It takes
jobs with `next_job`, in-band messages for the next device with `next_outbound`, and credits for the device
before with `next_upstream`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from flowedge.core.arrays import NO_TOKEN, Payload
from flowedge.core.errors import DeviceError, FlowEdgeError, NonFiniteError, ProtocolError
from flowedge.core.messages import (
    Close,
    Credit,
    Fault,
    Forget,
    Heartbeat,
    Message,
    Open,
    Prune,
    Segment,
    StageTime,
    Tapped,
    no_rows,
)
from flowedge.core.request import StageReport
from flowedge.engine.draw import DrawnRows
from flowedge.engine.finite import rows_not_finite
from flowedge.engine.jobs import (
    DropCache,
    Forward,
    ForwardBatch,
    ForwardOutcome,
    OpenCache,
    StageJob,
    StageResult,
    shares_of,
)
from flowedge.engine.stage.computing_segments import ComputingSegment, ComputingSegments
from flowedge.engine.stage.retained_caches import RetainedCaches
from flowedge.engine.stage.stage_session import StageSession
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.engine.stage.waiting_segments import ForwardTimes, WaitingSegments
from flowedge.engine.work_counts import CLOSED, PIPELINE_ENDED, WorkCounts
from flowedge.protocol.frame_bounds import CONTROL_BYTES
from flowedge.protocol.outbox import Outbox

NOT_COMPUTED = StageTime(0, 0.0)
TAPPED_BYTES = CONTROL_BYTES // 2  # of tapped values in a message
MAX_LATE_CLOSES = 1024  # ended sessions remembered, so that a late express close is known as late


class Stage:
    """All sessions of one stage. Its driver computes one job at a time."""

    def __init__(self, device: str, spec: StageSpec) -> None:
        self.device = device
        self.spec = spec
        self._sessions: dict[str, StageSession] = {}
        self._closed: dict[str, StageReport] = {}  # tombstones, until the in-band close has passed
        self._passed: deque[str] = deque(maxlen=MAX_LATE_CLOSES)
        self._inbox = WaitingSegments(spec.max_rows)
        self._cache_jobs: deque[OpenCache | DropCache] = deque()
        self._computing = ComputingSegments()
        self._times = ForwardTimes()
        self._outbox = Outbox()
        self._upstream: deque[Message] = deque()
        self._tapped: deque[Tapped] = deque()
        self._refusing: FlowEdgeError | None = None
        self._counts = WorkCounts()
        self._kept = RetainedCaches(spec.max_sessions)

    @property
    def queue_length(self) -> int:
        """Segments that wait to be computed."""
        return len(self._inbox)

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_kept(self) -> int:
        """Ended sessions of which caches are kept."""
        return len(self._kept)

    @property
    def is_drained(self) -> bool:
        """Whether no session is open and no message about an ended session is still to pass."""
        return not (self._sessions or self._closed or self._outbox)

    def refuse_sessions(self, error: FlowEdgeError) -> None:
        """Answer the opening of every further session with an error; open sessions go on."""
        self._refusing = error

    def fail_sessions(self, error: FlowEdgeError) -> None:
        """End every session with an error, which reaches the draft node as a Fault."""
        for name in list(self._sessions):
            self._fail_session(name, error)

    def receive(self, message: Message, express: bool) -> None:
        """Take in a message from the in-band link or an express link.

        A message that breaks the protocol ends the session it names, with a Fault, and no other session.
        """
        try:
            match message:
                case Open() if not express:
                    self._open(message)
                case Segment() if not express:
                    self._receive_segment(message)
                case Prune():
                    self._receive_prune(message, express)
                case Close():
                    self._receive_close(message, express)
                case Forget() if not express:
                    self._forget(message.session)
                    self._outbox.put(message)
                case Fault() if not express:
                    self._outbox.put(message)
                case Heartbeat():
                    pass
                case _:
                    link = "an express" if express else "the in-band"
                    raise ProtocolError(f"a {type(message).__name__} does not belong on {link} link")
        except ProtocolError as error:
            self._fail_session(getattr(message, "session", ""), error)

    def next_job(self) -> StageJob | None:
        """Return the next job, once the job before it is finished; None if there is nothing to do."""
        if self._cache_jobs:
            return self._cache_jobs.popleft()
        while self._inbox and self._computing.idle:
            for segment in self._inbox.take(self._takes_turns, self._times.worth):
                if self.spec.is_first:
                    self._upstream.append(Credit(segment.session))
                try:
                    self._start(segment)
                except ProtocolError as error:
                    self._fail_session(segment.session, error)
            if (job := self._computing.begin()) is not None:
                return job
        return None

    def finish(self, job: StageJob, output: StageResult) -> None:
        """Take back a job that was run, with its result."""
        computed = self._computing.take(job, output)
        for segment, outcome in computed:
            if segment.ended and isinstance(outcome, FlowEdgeError):
                self._forget(segment.forward.session)  # the executor has freed the cache
        computed = [each for each in computed if not each[0].ended]
        time = StageTime(sum(segment.forward.num_rows for segment, _ in computed), self._computing.seconds)
        finished = [self._finished(*each, time) for each in computed]
        self._outbox.put_together([segment for segment in finished if segment is not None])

    def _finished(
        self, computed: ComputingSegment, output: ForwardOutcome, time: StageTime
    ) -> Segment | None:
        """Return the segment that goes on in place of one that was computed, if its session goes on."""
        forward, segment = computed.forward, computed.segment
        session = self._sessions.get(forward.session)
        if session is None:
            return None
        if isinstance(output, FlowEdgeError):
            self._fail_session(forward.session, output)
            return None
        if output is None:
            session.count(segments=1, aborted=1)
            return self._empty(session, no_rows(segment))
        wasted = forward.num_rows - segment.num_rows
        session.count(segments=1, rows_computed=forward.num_rows, rows_wasted=wasted)
        if isinstance(output, DrawnRows):
            assert session.path is not None
            segment = session.path.take(segment, computed.offsets, output)
            live = segment.payload
        else:
            live = computed.live(output)
        failed = self._count_failed(live)
        if failed:
            self._fail_session(forward.session, self._not_finite(forward, f"{failed} of {len(live)} rows"))
            return None
        if session.taps is not None and not segment.committed:
            live = session.taps.take(live)
        return self._output(segment, live, time)

    def fail(self, job: StageJob, error: FlowEdgeError) -> None:
        """Take back a job that could not be run: its sessions end with a Fault."""
        if isinstance(job, ForwardBatch):
            self.finish(job, [error] * len(job.forwards))
        else:
            self._fail_session(job.session, error)

    def next_outbound(self) -> Message | None:
        """Return the next message for the in-band link, which must be ready to take it."""
        return self._outbox.pop()

    def next_upstream(self) -> Message | None:
        """Return the next message for the device before this one."""
        return self._upstream.popleft() if self._upstream else None

    def next_express(self) -> Message | None:
        """Return the next message to be sent straight to the draft node."""
        return self._tapped.popleft() if self._tapped else None

    @property
    def has_news(self) -> bool:
        """Whether `next_upstream`, `next_express` or `take_counts` has something to give."""
        return bool(self._upstream or self._tapped or self._counts)

    def take_counts(self) -> WorkCounts:
        """Return what was done since the last call."""
        return self._counts.take()

    def record_busy(self, job: StageJob, seconds: float) -> None:
        """Add the compute time of a job that is about to be taken back to the reports of its sessions."""
        self._computing.seconds = seconds
        if isinstance(job, ForwardBatch) and not job.dead:
            self._times.observe(job.num_rows, seconds)
        for name, share in shares_of(job).items():
            if name in self._sessions:
                self._sessions[name].count(busy_s=seconds * share)

    def record_sent(self, session: str, num_bytes: int) -> None:
        """Add bytes sent downstream to a session's report."""
        if session in self._sessions:
            self._sessions[session].count(bytes_sent=num_bytes)

    def drop_all(self) -> None:
        """Forget every session: the pipeline of this stage has ended."""
        for name in list(self._sessions):
            self._end(name, PIPELINE_ENDED)
        self._cache_jobs += map(DropCache, self._kept.take_all())
        self._closed.clear()
        self._outbox = Outbox()
        self._upstream.clear()
        self._tapped.clear()

    def _open(self, message: Open) -> None:
        if message.session in self._closed:
            self._outbox.put(message)
            return
        if message.session in self._sessions:
            raise ProtocolError(f"session {message.session} is open already")
        copied, refusal = None, self._refusing
        if refusal is None:
            taken = self._kept.capacity + sum(session.capacity for session in self._sessions.values())
            refusal = self.spec.refusal(message, len(self._sessions), taken)
        try:
            if message.prefix is not None:
                source = self._sessions.get(message.prefix.session)
                copied = self._kept.copied(message.prefix, None if source is None else source.tail)
        except FlowEdgeError as error:
            refusal = refusal or error
        if refusal is not None:
            # One fault, and a tombstone for the messages of the session that are still to come.
            self._closed[message.session] = StageReport(self.device)
            self._outbox.put(self._fault(message.session, refusal))
            return
        self._counts.opened += 1
        session = StageSession(self.device, message, self._counts.work, self.spec)
        self._sessions[message.session] = session
        self._cache_jobs.append(OpenCache(message.session, message.capacity, copied))
        self._outbox.put(message)

    def _forget(self, session: str) -> None:
        if self._kept.forget(session):
            self._cache_jobs.append(DropCache(session))

    def _receive_segment(self, segment: Segment) -> None:
        if segment.session in self._closed:
            return
        session = self._session(segment.session)
        session.check_payload(segment)
        session.check_tokens(segment)
        if len(self._inbox) >= self.spec.max_queue:
            raise ProtocolError(f"{self.spec.max_queue} segments wait here already")
        self._inbox.put(session.renumbered(segment))

    def _receive_prune(self, prune: Prune, express: bool) -> None:
        if prune.session in self._closed or (express and prune.session not in self._sessions):
            return
        session = self._session(prune.session)
        if not express:
            session.check_fence(prune)
        session.hold(prune)
        while (due := session.next_held()) is not None:
            self._apply(session, due)
        if not express:
            session.pass_fence(prune.epoch)

    def _apply(self, session: StageSession, prune: Prune) -> None:
        tapped = session.apply(prune)
        if tapped is not None:
            at_once = max(1, TAPPED_BYTES // tapped[0].nbytes)
            for first in range(0, len(tapped), at_once):
                rows = tapped[first : first + at_once]
                self._tapped.append(Tapped(prune.session, self.spec.width, rows))
        self._inbox.replace(prune.session, lambda segment: session.trimmed(segment, prune))
        self._computing.prune(prune)
        session.count(rows_wasted=self._outbox.prune(prune))

    def _takes_turns(self, session: str) -> bool:
        return session not in self._sessions or self._sessions[session].takes_turns

    def _start(self, segment: Segment) -> None:
        """Make a segment a part of the next job; a segment without rows is handed on.

        Raises:
            ProtocolError: when its rows do not follow those of its session.
        """
        session = self._session(segment.session)
        if segment.num_rows == 0:
            session.count(segments=1)
            self._outbox.put(self._empty(session, segment))
            return
        if self.spec.is_first and session.drawing is not None and not segment.committed:
            segment = replace(segment, tokens=segment.payload.astype(np.int64))
        forward = session.begin_forward(segment)
        header = replace(segment, payload=np.zeros((segment.num_rows, 0), dtype=self.spec.dtype))
        self._computing.add(forward, header)

    def _count_failed(self, live: Payload) -> int:
        """Return the number of computed rows whose hidden state is not finite, or that have no token."""
        return int((live == NO_TOKEN).sum()) if self.spec.returns_tokens else rows_not_finite(live)

    def _not_finite(self, job: Forward, rows: str) -> NonFiniteError:
        """Return the error of a forward whose rows failed; it names the origin of the values."""
        given = 0 if self.spec.is_first else rows_not_finite(job.payload)
        if given:
            return NonFiniteError.of(f"{given} of {job.num_rows} rows that the device before it sent")
        return NonFiniteError.of(f"{rows} that {self.spec.layers} computed", self.spec.dtype)

    def _output(self, segment: Segment, payload: Payload, time: StageTime) -> Segment:
        """Return the segment that goes on in place of one that came in."""
        return replace(segment, payload=payload, stage_times=(*segment.stage_times, time))

    def _empty(self, session: StageSession, segment: Segment) -> Segment:
        """Return the segment that goes on in place of one without rows."""
        payload: Payload = np.zeros(0, dtype=np.int32)
        if not self.spec.returns_tokens:
            width = session.handed_width(committed=segment.committed)
            payload = np.zeros((0, width), dtype=self.spec.dtype)
        return self._output(segment, payload, NOT_COMPUTED)

    def _receive_close(self, close: Close, express: bool) -> None:
        name, kept = close.session, False
        if name in self._sessions:
            session = self._sessions[name]
            self._closed[name] = session.report
            if not express:
                kept = self._kept.keep(close, session.capacity, session.tail)
            self._end(name, CLOSED, kept=kept)
        elif express and name not in self._passed and len(self._closed) < MAX_LATE_CLOSES:
            # The close has overtaken the open; both are still to come in-band.
            self._closed.setdefault(name, StageReport(self.device))
        if not express:
            report = self._closed.pop(name, None)
            self._passed.append(name)
            reports = (*close.reports, report or StageReport(self.device))
            self._outbox.put(replace(close, reports=reports, kept=close.kept if kept else 0))

    def _end(self, name: str, reason: str, *, kept: bool = False) -> None:
        self._sessions.pop(name)
        self._counts.ended[reason] += 1
        self._inbox.drop(name)
        self._outbox.drop_segments(name)
        self._computing.kill(name)
        if not kept:
            self._cache_jobs.append(DropCache(name))

    def _session(self, name: str) -> StageSession:
        if name not in self._sessions:
            raise ProtocolError(f"session {name} is not open here")
        return self._sessions[name]

    def _fail_session(self, name: str, error: FlowEdgeError) -> None:
        if name in self._sessions:
            self._closed[name] = self._sessions[name].report
            self._end(name, error.code)
        self._forget(name)
        self._outbox.put(self._fault(name, error))

    def _fault(self, session: str, error: FlowEdgeError) -> Fault:
        # A DeviceError's text begins with the device, which a Fault names in a field of its own.
        own = isinstance(error, DeviceError) and error.device == self.device
        reason = error.reason if isinstance(error, DeviceError) and own else str(error)
        return Fault(session, self.device, error.code, reason)
