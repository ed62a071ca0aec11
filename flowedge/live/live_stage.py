"""A stage at work: drives the state machine with real links and real compute.

Everything here runs on the event loop but the jobs, which run in the compute lane.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from flowedge.core.errors import (
    BadRequestError,
    DeviceError,
    DeviceLostError,
    DrainingError,
    FlowEdgeError,
    ProtocolError,
)
from flowedge.core.log_fields import about
from flowedge.core.messages import Close, Fault, Message, Open, Prune
from flowedge.engine.activity import PRUNE, TRANSFER, job_activity, message_rows
from flowedge.engine.jobs import StageExecutor
from flowedge.engine.stage import Stage
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.pump import Pump
from flowedge.live.session_log import SessionLog
from flowedge.live.timeline import Timeline
from flowedge.live.transport.link import LinkKind, OutLink
from flowedge.live.transport.server import InStream
from flowedge.live.work_timing import WorkTiming
from flowedge.protocol.wire import FrameError

MAX_STREAMS = 16  # in-band streams that may be open at once; a pipeline needs one
OpenLink = Callable[[Callable[[Message], None], Callable[[DeviceLostError], None]], Awaitable[OutLink]]

_log = logging.getLogger(__name__)


class LiveStage:
    """One stage of one pipeline, from the first stream to the end of the pipeline.

    Each session belongs to the in-band stream that opened it; other streams cannot touch it. The pipeline
    ends when the draft node's express stream does, or when the next device is lost. `ended` says why;
    `timeline` is what was done and when.
    """

    def __init__(
        self,
        machine: Stage,
        executor: StageExecutor,
        timing: WorkTiming,
        on_ended: Callable[[str], None],
        observer: LiveObserver = UNOBSERVED,
        *,
        pipeline: str = "",
    ) -> None:
        """`on_ended` is called once, on the event loop, with the reason for which the pipeline has ended.

        pipeline: its id, for the log.
        """
        self.ended: str | None = None
        self.timeline = Timeline()
        self._pipeline = pipeline
        self._log = SessionLog(machine.device, pipeline)
        self._machine = machine
        self._executor = executor
        self._timing = timing
        self._observer = observer
        self._on_ended = on_ended
        self._downstream: OutLink | None = None
        self._closing: asyncio.Future[None] | None = None
        self._owners: dict[str, InStream] = {}
        self._in_band: set[InStream] = set()
        self._express: InStream | None = None
        self._sending = False
        self._compute_pump = Pump("compute", self._compute, self._on_bug)
        self._send_pump = Pump("send", self._send, self._on_bug)

    @property
    def device(self) -> str:
        """The name of this device."""
        return self._machine.device

    @property
    def in_use(self) -> bool:
        """Whether a peer has a stream open."""
        return self.ended is None and bool(self._in_band or self._express)

    @property
    def num_sessions(self) -> int:
        """Sessions that are open here."""
        return self._machine.num_sessions

    @property
    def queue_length(self) -> int:
        """Segments that wait for the compute lane."""
        return self._machine.queue_length

    @property
    def is_drained(self) -> bool:
        """Whether nothing is under way: no session, and no message that has not been sent on."""
        return self.ended is not None or (self._machine.is_drained and not self._sending)

    def begin_drain(self, error: DrainingError) -> None:
        """Have sessions go on, and every new one refused with an error."""
        self._machine.refuse_sessions(error)

    def fail_sessions(self, error: DrainingError) -> None:
        """End every session with an error, which its client gets; `is_drained` when all have been told."""
        self._machine.fail_sessions(error)
        self._changed()

    async def connect(self, open_link: OpenLink) -> None:
        """Open the link to the next device and begin to work. Raises what `open_link` raises."""
        link = await open_link(self._on_reply, self._on_downstream_lost)
        if self.ended is not None:
            await link.close()
            raise DeviceError(self.device, f"the pipeline has ended: {self.ended}")
        self._downstream = link
        self._compute_pump.start()
        self._send_pump.start()

    async def stop(self, reason: str) -> None:
        """End the stage: forget all sessions, close the link; the caches are freed by the lane."""
        self._end(reason)
        await self._compute_pump.stop()
        await self._send_pump.stop()
        self._timing.stop()
        if self._closing is not None:
            await self._closing

    def opened(self, stream: InStream) -> None:
        """Take a stream; see StreamOwner."""
        if self.ended is not None:
            raise DeviceError(self.device, f"the pipeline has ended: {self.ended}")
        if stream.kind is LinkKind.EXPRESS:
            if self._express is not None:
                raise BadRequestError(f"device {self.device} has a draft node already: {self._express.peer}")
            self._express = stream
        elif len(self._in_band) >= MAX_STREAMS:
            raise BadRequestError(f"{MAX_STREAMS} in-band streams are open to device {self.device} already")
        else:
            self._in_band.add(stream)

    def received(self, stream: InStream, message: Message) -> None:
        """Take in a message; see StreamOwner."""
        self._timing.arrive(stream.kind, stream.departed, lambda: self._take(stream, message))

    def _take(self, stream: InStream, message: Message) -> None:
        if self.ended is not None or (stream is not self._express and stream not in self._in_band):
            return
        try:
            self._check_sender(stream, message)
        except ProtocolError as error:
            session = getattr(message, "session", "?")
            stream.reply(Fault(session, self.device, error.code, str(error)))
            return
        express = stream.kind is LinkKind.EXPRESS
        if express and isinstance(message, Prune) and message.session in self._owners:
            now = time.monotonic()
            self.timeline.add(message.session, PRUNE, now, now)
        self._machine.receive(message, express=express)
        self._changed()

    def malformed(self, stream: InStream, error: FrameError) -> None:
        """A frame could not be read: its sender has a Fault, which goes up to the draft node."""

    def closed(self, stream: InStream, reason: str) -> None:
        """A stream is over; its sessions end, and with the draft node's the whole stage."""
        if stream is self._express:
            self._express = None
            self._end(f"the draft node {stream.peer} is gone: {reason}")
            return
        self._in_band.discard(stream)
        for session in [name for name, owner in self._owners.items() if owner is stream]:
            del self._owners[session]
            self._machine.receive(Close(session), express=False)
        self._changed()

    def _check_sender(self, stream: InStream, message: Message) -> None:
        if stream.kind is LinkKind.EXPRESS:
            if not isinstance(message, Prune | Close):
                raise ProtocolError(f"a {type(message).__name__} does not belong on an express link")
            return
        session = getattr(message, "session", "")
        owner = self._owners.get(session)
        if owner is None and isinstance(message, Open):
            self._owners[session] = stream
        elif owner is None and isinstance(message, Fault | Close):
            pass  # of a session that was refused further up; the draft node waits for it
        elif owner is not stream:
            raise ProtocolError(f"session {session} was not opened on this stream")
        elif isinstance(message, Close):
            del self._owners[session]

    def _changed(self) -> None:
        """Wake whatever may have work now."""
        self._timing.changed()
        self._count()
        self._hand_out()
        self._compute_pump.wake()

    def _count(self) -> None:
        counts = self._machine.take_counts()
        if counts:
            self._observer.counted(counts)

    def _hand_out(self) -> None:
        """Pass on credits and see to what waits to be sent."""
        while (message := self._machine.next_upstream()) is not None:
            owner = self._owners.get(getattr(message, "session", ""))
            if owner is not None:
                owner.reply(message)
        self._send_pump.wake()

    async def _compute(self) -> bool:
        job = self._machine.next_job()
        # Looking for a job grants credits, and passes segments on that have no row left to compute.
        self._hand_out()
        if job is None:
            return False
        try:
            result, span = await self._timing.run_job(job, lambda: self._executor.run(job))
        except FlowEdgeError as error:
            self._machine.fail(job, error)
        else:
            self._machine.record_busy(job.session, span.seconds)
            kind, rows = job_activity(job)
            self.timeline.add(job.session, kind, span.start, span.end, rows)
            self._observer.computed(kind, span.seconds, rows)
            self._machine.finish(job, result)
        self._changed()
        return True

    async def _send(self) -> bool:
        message = self._machine.next_outbound()
        if message is None or self._downstream is None:
            return False
        if isinstance(message, Fault) and message.device == self.device:
            self._on_reply(message)  # the sender of what was wrong hears of it as well
        self._log.sending(message)
        started = time.monotonic()
        self._sending = True
        try:
            sent = await self._timing.send(self._downstream, message)
        except DeviceLostError as error:
            self._on_downstream_lost(error)
            return False
        finally:
            self._sending = False
        session, ended = getattr(message, "session", ""), time.monotonic()
        self.timeline.add(session, TRANSFER, started, ended, message_rows(message))
        self._observer.transferred(ended - started)
        self._machine.record_sent(session, sent)
        return True

    def _on_reply(self, message: Message) -> None:
        """The next device has something to say: its faults travel up to the draft node."""
        if isinstance(message, Fault):
            owner = self._owners.get(message.session)
            if owner is not None:
                owner.reply(message)

    def _on_downstream_lost(self, error: DeviceLostError) -> None:
        for session, owner in self._owners.items():
            owner.reply(Fault(session, error.device, error.code, error.reason))
        fields = about(event="link_lost", pipeline=self._pipeline, peer=error.device, reason=error.reason)
        _log.warning("the next device is lost", extra=fields)
        self._end(str(error))

    def _on_bug(self, error: Exception) -> None:
        reason = f"internal error: {type(error).__name__}: {error}"
        for session, owner in self._owners.items():
            owner.reply(Fault(session, self.device, DeviceError.code, reason))
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.ended is not None:
            return
        self.ended = reason
        fields = about(event="pipeline_ended", pipeline=self._pipeline, reason=reason)
        _log.info("the pipeline has ended", extra=fields)
        self._log.dropped(self._owners, reason)
        self._owners.clear()
        self._machine.drop_all()
        self._count()
        self._compute_pump.wake()  # frees the caches
        if self._downstream is not None:
            self._closing = asyncio.ensure_future(self._downstream.close())
        for stream in [*self._in_band, *([self._express] if self._express is not None else [])]:
            stream.end(f"the pipeline has ended: {reason}")
        self._on_ended(reason)
