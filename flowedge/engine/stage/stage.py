"""The state machine of one pipeline stage: messages and results in, commands out.

It opens no socket, reads no clock and starts no thread. A driver hands messages over with `receive`, and
carries out the commands of `poll`. It hands back the result of a job with `finish`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flowedge.core.arrays import NO_TOKEN, Payload
from flowedge.core.errors import FlowEdgeError, NonFiniteError, ProtocolError
from flowedge.core.messages import (
    Close,
    Fault,
    Forget,
    Heartbeat,
    Message,
    Open,
    Prune,
    Segment,
    StageTime,
    no_rows,
)
from flowedge.engine.commands import Compute, Count, StageCommand
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
from flowedge.engine.stage.batching import StageBatching
from flowedge.engine.stage.computing_segments import ComputingSegment
from flowedge.engine.stage.outgoing import StageOutgoing
from flowedge.engine.stage.session_table import SessionTable
from flowedge.engine.stage.stage_session import StageSession
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.engine.work_counts import CLOSED, PIPELINE_ENDED, Load, WorkCounts
from flowedge.protocol.link_kind import LinkKind


class Stage:
    """All sessions of one stage. Its driver computes one job at a time.

    Attributes:
        now: time in seconds, set by the driver before each message and each poll.
    """

    def __init__(self, device: str, spec: StageSpec) -> None:
        self.device = device
        self.spec = spec
        self.now = 0.0
        self._table = SessionTable(device, spec)
        self._batching = StageBatching(spec)
        self._outgoing = StageOutgoing(device, spec)
        self._counts = WorkCounts()
        self._refusing: FlowEdgeError | None = None

    def load(self) -> Load:
        """Return what the stage holds now."""
        table = self._table
        return Load(
            sessions=len(table.open),
            retained=len(table.retained),
            queued=len(self._batching.waiting),
            drained=not (table.open or table.ended or self._outgoing.in_band),
        )

    def refuse_sessions(self, error: FlowEdgeError) -> None:
        """Answer the opening of every further session with an error; open sessions go on."""
        self._refusing = error

    def fail_sessions(self, error: FlowEdgeError) -> None:
        """End every session with an error, which reaches the draft node as a Fault."""
        for name in list(self._table.open):
            self._fail_session(name, error)

    def drop_all(self) -> None:
        """Forget every session: the pipeline of this stage has ended."""
        for name in list(self._table.open):
            self._end(name, PIPELINE_ENDED)
        for name in self._table.retained.take_all():
            self._drop_cache(name)
        self._table.ended.clear()
        self._outgoing.clear()

    def receive(self, message: Message, link: LinkKind) -> None:
        """Take in a message from the in-band link or an express link.

        A message that breaks the protocol ends the session it names, with a Fault, and no other session.
        """
        in_band = link is LinkKind.IN_BAND
        try:
            match message:
                case Open() if in_band:
                    self._open(message)
                case Segment() if in_band:
                    self._receive_segment(message)
                case Prune():
                    self._receive_prune(message, in_band=in_band)
                case Close():
                    self._receive_close(message, in_band=in_band)
                case Forget() if in_band:
                    self._forget(message.session)
                    self._outgoing.in_band.put(message)
                case Fault() if in_band:
                    self._outgoing.in_band.put(message)
                case Heartbeat():
                    pass
                case _:
                    name = "the in-band" if in_band else "an express"
                    raise ProtocolError(f"a {type(message).__name__} does not belong on {name} link")
        except ProtocolError as error:
            self._fail_session(getattr(message, "session", ""), error)

    def poll(self, *, idle: bool, ready: bool) -> list[StageCommand]:
        """Return what is to be done now, in order.

        Args:
            idle: whether the next job may begin; at most one is returned.
            ready: whether the in-band link takes a message; at most one is returned.
        """
        commands: list[StageCommand] = []
        if idle:
            job = self._batching.next_job(self.now, self._table.computed_alone, self._take_up)
            commands += [] if job is None else [Compute(job)]
        commands += self._outgoing.take(ready=ready)
        if self._counts:
            commands.append(Count(self._counts.take()))
        return commands

    def ran(self, job: StageJob, seconds: float) -> None:
        """Add the time of a job that is about to be taken back to the reports of its sessions."""
        self._batching.ran(job, seconds)
        for name, share in shares_of(job).items():
            if name in self._table.open:
                self._table.open[name].count(busy_s=seconds * share)

    def finish(self, job: StageJob, output: StageResult) -> None:
        """Take back a job that was run, with its result."""
        computed = self._batching.computing.take(job, output)
        began, seconds = self._batching.computing.began, self._batching.computing.seconds
        rows = sum(each.forward.num_rows for each, _ in computed if not each.ended)
        finished = [
            self._finished(each, outcome, StageTime(rows, seconds, max(began - each.segment.arrived, 0.0)))
            for each, outcome in computed
        ]
        self._outgoing.in_band.put_together([segment for segment in finished if segment is not None])
        for each, _ in computed:
            try:
                self._apply_due(each.forward.session)
            except ProtocolError as error:
                self._fail_session(each.forward.session, error)

    def fail(self, job: StageJob, error: FlowEdgeError) -> None:
        """Take back a job that could not be run: its sessions end with a Fault."""
        if isinstance(job, ForwardBatch):
            self.finish(job, [error] * len(job.forwards))
            return
        session = self._table.open.get(job.session)
        if session is not None and session.opening is job:  # else that one has ended before
            self._fail_session(job.session, error)

    def sent(self, session: str, num_bytes: int) -> None:
        """Add bytes sent in-band to a session's report."""
        if session in self._table.open:
            self._table.open[session].count(bytes_sent=num_bytes)

    def _finished(
        self, computed: ComputingSegment, output: ForwardOutcome, time: StageTime
    ) -> Segment | None:
        """Return the segment that goes on for one that was computed, if its session goes on."""
        forward, segment = computed.forward, computed.segment
        if computed.ended:
            if isinstance(output, FlowEdgeError):
                self._forget(forward.session)  # the executor has freed the cache
            return None
        session = self._table.open.get(forward.session)
        if session is None:
            return None
        if isinstance(output, FlowEdgeError):
            self._fail_session(forward.session, output)
            return None
        if output is None:
            session.count(segments=1, aborted=1)
            return self._outgoing.empty(session, no_rows(segment))
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
        return self._outgoing.computed(segment, live, time)

    def _count_failed(self, live: Payload) -> int:
        """Return the number of computed rows whose hidden state is not finite, or that have no token."""
        return int((live == NO_TOKEN).sum()) if self.spec.returns_tokens else rows_not_finite(live)

    def _not_finite(self, job: Forward, rows: str) -> NonFiniteError:
        """Return the error of a forward whose rows failed; it names the origin of the values."""
        given = 0 if self.spec.is_first else rows_not_finite(job.payload)
        if given:
            return NonFiniteError.of(f"{given} of {job.num_rows} rows that the device before it sent")
        return NonFiniteError.of(f"{rows} that {self.spec.layers} computed", self.spec.dtype)

    def _open(self, message: Open) -> None:
        name, table = message.session, self._table
        if name in table.ended:
            self._outgoing.in_band.put(message)
            return
        if name in table.open:
            raise ProtocolError(f"session {name} is open already")
        refusal, copied = self._refusing or table.refusal(message), None
        if refusal is None and message.prefix is not None:
            try:
                copied = table.copied(message.prefix)
            except FlowEdgeError as error:
                refusal = error
        if refusal is not None:
            table.refuse(name)  # for the messages of the session that are still to come
            self._outgoing.fault(name, refusal)
            return
        self._counts.opened += 1
        opening = OpenCache(name, message.capacity, copied)
        session = StageSession(self.device, message, self._counts.work, self.spec, opening)
        table.begin(session, name, message.prefix)
        self._batching.change_cache(opening)
        self._outgoing.in_band.put(message)

    def _forget(self, session: str) -> None:
        if self._table.retained.forget(session):
            self._drop_cache(session)

    def _drop_cache(self, session: str) -> None:
        self._table.shared.forget(session)
        self._batching.change_cache(DropCache(session))

    def _receive_segment(self, segment: Segment) -> None:
        if segment.session in self._table.ended:
            return
        session = self._table.find(segment.session)
        session.check_payload(segment)
        session.check_tokens(segment)
        self._batching.put(replace(session.renumbered(segment), arrived=self.now))

    def _receive_prune(self, prune: Prune, *, in_band: bool) -> None:
        name = prune.session
        if name in self._table.ended or not (in_band or name in self._table.open):
            return
        session = self._table.find(name)
        if in_band:
            session.check_fence(prune)
        session.hold(prune)
        self._apply_due(name)
        if in_band:
            session.pass_fence(prune.epoch)

    def _apply_due(self, name: str) -> None:
        """Apply the next prunes of a session, if it is open, up to one that has to wait for its turn."""
        session = self._table.open.get(name)
        while session is not None and (prune := session.next_held()) is not None:
            if prune.in_turn and self._batching.holds_before(prune):
                return
            self._apply(session, prune)

    def _apply(self, session: StageSession, prune: Prune) -> None:
        tapped = session.apply(prune)
        if tapped is not None:
            self._outgoing.tapped(prune.session, tapped)
        self._batching.prune(prune, lambda segment: session.trimmed(segment, prune))
        session.count(rows_wasted=self._outgoing.in_band.prune(prune))

    def _take_up(self, segment: Segment) -> None:
        """Make a segment belong to the next job. A segment without rows is handed on."""
        if self.spec.is_first:
            self._outgoing.credit(segment.session)
        try:
            session = self._table.find(segment.session)
            if segment.num_rows:
                self._compute(session, segment)
            else:
                session.count(segments=1)
                self._outgoing.in_band.put(self._outgoing.empty(session, segment))
                self._apply_due(segment.session)
        except ProtocolError as error:
            self._fail_session(segment.session, error)

    def _compute(self, session: StageSession, segment: Segment) -> None:
        if self.spec.is_first and session.drawing is not None and not segment.committed:
            segment = replace(segment, tokens=segment.payload.astype(np.int64))
        self._table.check_rows(session, segment.num_rows)
        forward = session.begin_forward(segment)
        header = replace(segment, payload=np.zeros((segment.num_rows, 0), dtype=self.spec.dtype))
        self._batching.computing.add(forward, header)

    def _receive_close(self, close: Close, *, in_band: bool) -> None:
        name, table, retained = close.session, self._table, False
        if name in table.open:
            session = table.open[name]
            retained = in_band and table.retained.retain(close, session.held_rows, session.tail)
            self._end(name, CLOSED, retained=retained)
        elif not in_band:
            table.close_early(name)
        if in_band:
            reports = table.pass_close(close)
            self._outgoing.in_band.put(replace(close, reports=reports, kept=close.kept if retained else 0))

    def _end(self, name: str, reason: str, *, retained: bool = False) -> None:
        """End an open session; `retained`: whether its cache stays for later sessions."""
        self._table.end(name)
        self._counts.ended[reason] += 1
        self._batching.end(name)
        self._outgoing.in_band.drop_segments(name)
        if not retained:
            self._drop_cache(name)

    def _fail_session(self, name: str, error: FlowEdgeError) -> None:
        if name in self._table.open:
            self._end(name, error.code)
        self._forget(name)
        self._outgoing.fault(name, error)
