"""The common part of the drivers of a stage and of a draft node: computing, sending, the timeline, the stop.

The state machine is used by three threads: the link thread brings messages, the compute thread brings
results, and the event loop opens and ends sessions. A lock admits one of them at a time. Whoever has changed
the machine carries out its commands, so that nothing waits for another thread to wake up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from flowedge.core.errors import DeviceLostError, DrainingError, FlowEdgeError
from flowedge.core.messages import Message, shared_bytes
from flowedge.engine.activity import TRANSFER, job_activity, job_rows, message_rows
from flowedge.engine.commands import Compute
from flowedge.engine.jobs import DraftJob, StageJob, session_jobs
from flowedge.engine.work_counts import Load
from flowedge.live.compute_thread import Outcome, Span
from flowedge.live.in_band_sender import InBandSender
from flowedge.live.observer import LiveObserver
from flowedge.live.timeline import Timeline
from flowedge.live.transport.server import StreamOwner
from flowedge.live.work_timing import WorkTiming

JobT = TypeVar("JobT", bound=StageJob | DraftJob)
RanT_contra = TypeVar("RanT_contra", bound=StageJob | DraftJob, contravariant=True)
ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)


class Machine(Protocol[RanT_contra]):
    """The methods of a state machine that every driver uses; see Stage and DraftNode."""

    device: str

    def load(self) -> Load: ...

    def fail(self, job: RanT_contra, error: FlowEdgeError, /) -> None: ...

    def ran(self, job: RanT_contra, seconds: float, /) -> None: ...

    def sent(self, session: str, num_bytes: int, /) -> None: ...


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
        """run_job: the executor's method, which is called in the compute thread.

        To be called on the event loop.
        """
        self.timeline = Timeline()
        self._machine = machine
        self._run_job = run_job
        self._timing = timing
        self._observer = observer
        self._lock = threading.RLock()  # of the machine
        self._loop = asyncio.get_running_loop()
        self._working = False  # whether jobs are started
        self._computing = False
        self._closing: asyncio.Future[None] | None = None

    @property
    def device(self) -> str:
        return self._machine.device

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the pipeline has not ended."""

    @abstractmethod
    def load(self) -> Load:
        """Return what the device holds now, and whether a stop would interrupt nothing."""

    @abstractmethod
    def begin_drain(self, error: DrainingError) -> None:
        """Refuse everything new with an error; open sessions go on."""

    @abstractmethod
    def fail_sessions(self, error: DrainingError) -> None:
        """End every session with an error. The load is drained when all peers have been told."""

    async def stop(self, reason: str) -> None:
        """End all sessions and links. The compute thread frees the caches."""
        self._end_pipeline(reason)
        with self._lock:
            self._working = False
        self._timing.stop()
        if self._closing is not None:
            await self._closing

    @abstractmethod
    def _end_pipeline(self, reason: str) -> None:
        """End the pipeline from this side, unless it has ended; called on the event loop."""

    @abstractmethod
    def _poll(self, *, idle: bool) -> list[Any]:
        """Return the commands of the machine, if they are not carried out yet; called with the lock.

        Commands that have to keep their order among threads are carried out here. The others are Compute,
        which is returned only if `idle`, and SendInBand, whose link has been claimed.
        """

    @abstractmethod
    def _carry_out(self, command: Any) -> bool:
        """Carry out a command except Compute, without the lock.

        Returns:
            Whether the in-band link takes another message now.
        """

    @abstractmethod
    def _on_bug(self, error: Exception) -> None:
        """End the pipeline because of an error that nothing has foreseen; called on the event loop."""

    @abstractmethod
    def _on_lost(self, error: DeviceLostError) -> None:
        """End the pipeline because a device was lost; called on the event loop."""

    @abstractmethod
    def _finish(self, job: JobT, outcome: Outcome[ResultT | None]) -> None:
        """Hand the result of a job to the machine; called with the lock."""

    def _sender(self) -> InBandSender:
        """Return a sender of messages of the machine."""
        lost, go_on = partial(self._on_loop, self._on_lost), partial(self._foreseen, self._work)
        return InBandSender(self._lock, self._timing, self._note_sent, lost, go_on)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have a function called on the event loop."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and with it the pipeline
            self._loop.call_soon_threadsafe(function, *arguments)

    def _foreseen(self, step: Callable[[], None]) -> None:
        """Take a step in any thread; an exception is a bug, which ends the pipeline and not the thread."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 (sessions must be told of a bug, and not wait for ever)
            _log.exception("the driver of device %s failed", self.device)
            self._on_loop(self._on_bug, error)

    def _changed(self) -> None:
        """Carry out what the machine wants done since it has changed; called without the lock."""
        self._timing.changed()
        self._foreseen(self._work)

    def _start(self) -> None:
        self._working = True
        self._changed()

    def _work(self, *, starts_job: bool = True) -> None:
        """Carry out what the machine wants done; called without the lock.

        starts_job: whether the next job may be started, if the compute thread is free.
        """
        more = True
        while more:
            more = False
            with self._lock:
                idle = starts_job and self._working and not self._computing
                commands = self._poll(idle=idle)
                self._computing |= any(isinstance(command, Compute) for command in commands)
            for command in commands:
                if isinstance(command, Compute):
                    job = command.job
                    self._timing.run_job(job, partial(self._run_job, job), partial(self._concluded, job))
                else:
                    more |= self._carry_out(command)

    def _concluded(self, job: JobT, outcome: Outcome[ResultT | None]) -> None:
        """Take back a job: send what follows from it first, then start the next one."""
        activity, rows = job_activity(job)
        self._foreseen(partial(self._take_back, job, outcome, activity))
        self._timing.changed()
        self._foreseen(partial(self._work, starts_job=False))
        self._foreseen(self._work)
        if outcome.error is None:
            self._observer.computed(activity, outcome.span, rows)

    def _take_back(self, job: JobT, outcome: Outcome[ResultT | None], activity: str) -> None:
        with self._lock:
            self._computing = False
            if outcome.error is not None:
                self._machine.fail(job, outcome.error)
            else:
                self._machine.ran(job, outcome.span.seconds)
                # Before the end of the session is told to anyone.
                for each in session_jobs(job):
                    self.timeline.add(each.session, activity, *outcome.span, job_rows(each))
                self._finish(job, outcome)

    def _note_sent(self, message: Message, num_bytes: int, started: float, ended: float) -> None:
        for each, share in shared_bytes(message, num_bytes):
            session = getattr(each, "session", "")
            self._machine.sent(session, share)
            self.timeline.add(session, TRANSFER, started, ended, message_rows(each))
        self._observer.transferred(message, Span(started, ended))
