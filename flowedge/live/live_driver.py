"""The common part of the drivers of a stage and of a draft node: computing, sending, the timeline, the stop.

Everything in a driver runs on the event loop, except the jobs, which run in the compute thread.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from flowedge.core.errors import DeviceLostError, DrainingError, FlowEdgeError
from flowedge.core.messages import Message
from flowedge.engine.activity import TRANSFER, job_activity, message_rows
from flowedge.engine.jobs import DraftJob, StageJob
from flowedge.live.compute_thread import Span
from flowedge.live.observer import LiveObserver
from flowedge.live.pump import Pump
from flowedge.live.timeline import Timeline
from flowedge.live.transport.link import OutLink
from flowedge.live.transport.server import StreamOwner
from flowedge.live.work_timing import WorkTiming

JobT = TypeVar("JobT", bound=StageJob | DraftJob)
ResultT = TypeVar("ResultT")


class Machine(Protocol[JobT]):
    """The methods of a state machine that every driver uses; see Stage and DraftNode."""

    device: str

    @property
    def num_sessions(self) -> int: ...

    def next_job(self) -> JobT | None: ...

    def finish(self, job: JobT, result: Any, /) -> None: ...

    def fail(self, job: JobT, error: FlowEdgeError, /) -> None: ...

    def record_busy(self, session: str, seconds: float, /) -> None: ...

    def record_sent(self, session: str, num_bytes: int, /) -> None: ...


class LiveDriver(StreamOwner, Generic[JobT, ResultT]):
    """One state machine at work, until its pipeline has ended.

    Attributes:
        timeline: what the device did lately, and when.
    """

    def __init__(
        self,
        machine: Machine[JobT],
        run_job: Callable[[JobT], ResultT | None],
        timing: WorkTiming,
        observer: LiveObserver,
    ) -> None:
        """run_job: the executor's method, which is called in the compute thread."""
        self.timeline = Timeline()
        self._machine = machine
        self._run_job = run_job
        self._timing = timing
        self._observer = observer
        self._compute_pump = Pump("compute", self._compute, self._on_bug)
        self._closing: asyncio.Future[None] | None = None

    @property
    def device(self) -> str:
        return self._machine.device

    @property
    def num_sessions(self) -> int:
        return self._machine.num_sessions

    @property
    def queue_length(self) -> int:
        return 0

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the pipeline has not ended."""

    @property
    @abstractmethod
    def is_drained(self) -> bool:
        """Whether a stop would interrupt nothing: no session is open and no message waits to be sent."""

    @abstractmethod
    def begin_drain(self, error: DrainingError) -> None:
        """Refuse everything new with an error; open sessions go on."""

    @abstractmethod
    def fail_sessions(self, error: DrainingError) -> None:
        """End every session with an error. `is_drained` is true when all peers have been told."""

    async def stop(self, reason: str) -> None:
        """End all sessions and links. The compute thread frees the caches."""
        self._end_pipeline(reason)
        for pump in (self._compute_pump, *self._send_pumps):
            await pump.stop()
        self._timing.stop()
        if self._closing is not None:
            await self._closing

    @property
    @abstractmethod
    def _send_pumps(self) -> list[Pump]:
        """The pumps that send in-band messages."""

    @abstractmethod
    def _end_pipeline(self, reason: str) -> None:
        """End the pipeline from this side, unless it has ended."""

    @abstractmethod
    def _hand_out(self) -> None:
        """Pass on what the machine has to give, except jobs."""

    @abstractmethod
    def _on_bug(self, error: Exception) -> None:
        """End the pipeline because of an error that nothing has foreseen."""

    @abstractmethod
    def _on_lost(self, error: DeviceLostError) -> None:
        """End the pipeline because a device was lost."""

    def _finish(self, job: JobT, result: ResultT | None, span: Span) -> None:  # noqa: ARG002
        self._machine.finish(job, result)

    def _changed(self) -> None:
        """Pass on what the machine has to give, and wake whatever may have work now."""
        self._timing.changed()
        self._hand_out()
        self._compute_pump.wake()

    def _start(self) -> None:
        for pump in (self._compute_pump, *self._send_pumps):
            pump.start()

    async def _compute(self) -> bool:
        """Have the next job computed; return whether there was a job."""
        job = self._machine.next_job()
        self._hand_out()  # looking for a job may produce messages, and end sessions
        if job is None:
            return False
        try:
            result, span = await self._timing.run_job(job, lambda: self._run_job(job))
        except FlowEdgeError as error:
            self._machine.fail(job, error)
        else:
            self._machine.record_busy(job.session, span.seconds)
            kind, rows = job_activity(job)
            self.timeline.add(job.session, kind, span.start, span.end, rows)
            self._observer.computed(kind, span.seconds, rows)
            self._finish(job, result, span)
        self._changed()
        return True

    async def _send_message(self, link: OutLink, message: Message) -> bool:
        """Send an in-band message; return whether the link took it."""
        started = time.monotonic()
        try:
            sent = await self._timing.send(link, message)
        except DeviceLostError as error:
            self._on_lost(error)
            return False
        session, ended = getattr(message, "session", ""), time.monotonic()
        self.timeline.add(session, TRANSFER, started, ended, message_rows(message))
        self._observer.transferred(ended - started)
        self._machine.record_sent(session, sent)
        return True
