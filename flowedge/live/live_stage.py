"""The driver of a stage: it lets the state machine work with real links and real compute."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from flowedge.core.errors import BadRequestError, DeviceError, DeviceLostError, DrainingError, ProtocolError
from flowedge.core.log_fields import about
from flowedge.core.messages import (
    Close,
    Fault,
    Forget,
    Message,
    Open,
    Prune,
    SessionMessage,
    session_messages,
)
from flowedge.engine.activity import PRUNE
from flowedge.engine.commands import Count, SendBack, SendExpress, SendInBand, StageCommand
from flowedge.engine.jobs import StageExecutor, StageJob, StageResult
from flowedge.engine.stage.stage import Stage
from flowedge.engine.work_counts import Load
from flowedge.live.compute_thread import Outcome
from flowedge.live.live_driver import LiveDriver
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.permitted_members import PermittedMembers
from flowedge.live.transport.frame_link import FrameLink, LinkEvents, OpenLink
from flowedge.live.transport.server import InStream
from flowedge.live.work_timing import WorkTiming
from flowedge.network.deadline import set_within
from flowedge.protocol import wire
from flowedge.protocol.frame_bounds import FrameError
from flowedge.protocol.link_kind import LinkKind

MAX_STREAMS = 16  # in-band streams that may be open at once; a pipeline needs one

_TELL_S = 1.5  # for the draft node to be told that this device was stopped
_ARRIVE_S = 0.1  # for the error to arrive there

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionLog:
    """The log lines of one stage of one pipeline about its sessions."""

    device: str
    pipeline: str

    def sending(self, message: Message) -> None:
        """Log a message that is handed to the in-band link, if it begins or ends a session."""
        match message:
            case Open():
                fields = about(
                    event="session_opened",
                    pipeline=self.pipeline,
                    session=message.session,
                    cache_rows=message.capacity,
                )
                _log.info("a session was opened", extra=fields)
            case Close():
                own = message.reports[-1]
                fields = about(
                    event="session_closed",
                    pipeline=self.pipeline,
                    session=message.session,
                    reason="the draft node closed it",
                    segments=own.segments,
                    rows_computed=own.rows_computed,
                    rows_trimmed=own.rows_trimmed,
                    bytes=own.bytes_sent,
                    busy_s=own.busy_s,
                )
                _log.info("a session has ended", extra=fields)
            case Fault() if message.device == self.device:
                fields = about(
                    event="session_failed",
                    pipeline=self.pipeline,
                    session=message.session,
                    code=message.code,
                    reason=message.reason,
                )
                _log.warning("a session has failed", extra=fields)

    def dropped(self, sessions: Iterable[str], reason: str) -> None:
        """Log the end of sessions that were open when the pipeline ended."""
        for session in sessions:
            fields = about(event="session_closed", pipeline=self.pipeline, session=session, reason=reason)
            _log.warning("a session has ended", extra=fields)


class LiveStage(LiveDriver[StageJob, StageResult]):
    """One stage of one pipeline, from its first stream to the end of the pipeline.

    Each session belongs to the in-band stream that opened it; other streams cannot touch it. In a cluster,
    only the device before this one may open in-band streams, and only the draft node an express stream. The
    pipeline ends when the draft node's express stream does, or when the next device is lost.

    Attributes:
        ended: why the pipeline has ended; None while it has not.
    """

    _machine: Stage

    def __init__(
        self,
        machine: Stage,
        executor: StageExecutor,
        timing: WorkTiming,
        on_ended: Callable[[str], None],
        observer: LiveObserver = UNOBSERVED,
        *,
        pipeline: str = "",
        permitted: PermittedMembers | None = None,
    ) -> None:
        """on_ended: called once, on the event loop, with the reason for which the pipeline has ended.

        pipeline: its label, for the log; permitted: whose streams are taken; None without certificates.
        """
        super().__init__(machine, executor.run, timing, observer)
        self.ended: str | None = None
        self._pipeline = pipeline
        self._permitted = permitted
        self._log = SessionLog(machine.device, pipeline)
        self._on_ended = on_ended
        self._sender_down = self._sender()
        self._owners: dict[str, InStream] = {}
        self._retained: dict[str, InStream] = {}  # of ended sessions whose caches may be retained
        self._in_band: set[InStream] = set()
        self._express: InStream | None = None
        self._drained: DrainingError | None = None
        self._told = asyncio.Event()  # that the draft node has been told of the end

    @property
    def alive(self) -> bool:
        return self.ended is None

    @property
    def in_use(self) -> bool:
        """Whether a peer has a stream open."""
        return self.ended is None and bool(self._in_band or self._express)

    def load(self) -> Load:
        load = self._machine.load()
        drained = self.ended is not None or (load.drained and not self._sender_down.busy)
        return replace(load, drained=drained)

    def begin_drain(self, error: DrainingError) -> None:
        self._drained = DrainingError(self.device, "it was stopped after draining")
        with self._lock:
            self._machine.refuse_sessions(error)

    def fail_sessions(self, error: DrainingError) -> None:
        with self._lock:
            self._machine.fail_sessions(error)
        self._changed()

    async def connect(self, open_link: OpenLink) -> None:
        """Open the link to the next device and begin to work. Raises what `open_link` raises."""
        link = await open_link(LinkEvents(self._on_reply, self._on_lost, self._on_link_ready))
        if self.ended is not None:
            await link.close()
            raise DeviceError(self.device, f"the pipeline has ended: {self.ended}")
        self._sender_down.link = link
        self._start()

    def opened(self, stream: InStream) -> None:
        if self._permitted is not None:
            self._permitted.check_stream(stream, self.device)
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
            stream.max_frame_bytes = self._segment_bytes()

    def received(self, stream: InStream, message: Message) -> None:
        self._timing.arrive(stream.kind, stream.departed, partial(self._take, stream, message))

    def malformed(self, stream: InStream, error: FrameError) -> None:
        """Do nothing: the sender of the frame has been sent a Fault, which goes up to the draft node."""

    def closed(self, stream: InStream, reason: str) -> None:
        """End the stream's sessions; with the draft node's stream the whole pipeline ends."""
        if stream is self._express:
            self._express = None
            self._told.set()
            self._end_pipeline(f"the draft node {stream.peer} is gone: {reason}")
            return
        with self._lock:
            self._in_band.discard(stream)
            for session in [name for name, owner in self._owners.items() if owner is stream]:
                del self._owners[session]
                self._machine.receive(Close(session), LinkKind.IN_BAND)
            for session in [name for name, owner in self._retained.items() if owner is stream]:
                del self._retained[session]
                self._machine.receive(Forget(session), LinkKind.IN_BAND)
        self._changed()

    def _segment_bytes(self) -> int:
        """Return the most bytes of a segment's frame that the stage can make use of."""
        spec, item = self._machine.spec, np.dtype(self._machine.spec.dtype).itemsize
        taken = np.dtype(np.int32).itemsize if spec.is_first else spec.width * item
        return wire.segment_bytes(spec.max_rows, max(taken, self._timing.row_bytes))

    def _take(self, stream: InStream, message: Message) -> None:
        """Take in a message; called in the link thread, or by the timing."""
        self._foreseen(partial(self._receive, stream, message))
        self._changed()

    def _finish(self, job: StageJob, outcome: Outcome[StageResult | None]) -> None:
        self._machine.finish(job, outcome.result)

    def _receive(self, stream: InStream, message: Message) -> None:
        with self._lock:
            self._machine.now = time.monotonic()
            for each in session_messages(message):
                self._receive_one(stream, each)

    def _receive_one(self, stream: InStream, message: SessionMessage) -> None:
        """Take in a message of one session; called with the lock."""
        if self.ended is not None or (stream is not self._express and stream not in self._in_band):
            return
        try:
            self._check_sender(stream, message)
        except ProtocolError as error:
            session = getattr(message, "session", "?")
            stream.reply(Fault(session, self.device, error.code, str(error)))
            return
        if stream.kind is LinkKind.EXPRESS and isinstance(message, Prune) and message.session in self._owners:
            now = time.monotonic()
            self.timeline.add(message.session, PRUNE, now, now)
        self._machine.receive(message, stream.kind)

    def _check_sender(self, stream: InStream, message: SessionMessage) -> None:
        if stream.kind is LinkKind.EXPRESS:
            if not isinstance(message, Prune | Close):
                raise ProtocolError(f"a {type(message).__name__} does not belong on an express link")
            return
        session = getattr(message, "session", "")
        owner = self._owners.get(session)
        if isinstance(message, Forget):
            owner = self._retained.pop(session, stream)
        source = message.prefix.session if isinstance(message, Open) and message.prefix is not None else ""
        holder = self._owners.get(source, self._retained.get(source, stream))
        if holder is not stream:
            raise ProtocolError(f"session {source} was not opened on this stream")
        if owner is None and isinstance(message, Open):
            self._owners[session] = stream
        elif owner is None and isinstance(message, Fault | Close):
            pass  # of a session that was refused further up; the draft node waits for it
        elif owner is not stream:
            raise ProtocolError(f"session {session} was not opened on this stream")
        elif isinstance(message, Close):
            del self._owners[session]
            if message.kept:
                self._retained[session] = stream

    def _poll(self, *, idle: bool) -> list[StageCommand]:
        self._machine.now = time.monotonic()
        commands = self._machine.poll(idle=idle, ready=self._sender_down.ready)
        return [command for command in commands if not self._carried_out(command)]

    def _carried_out(self, command: StageCommand) -> bool:
        """Carry out a command that has to keep its order; return whether it is carried out."""
        match command:
            case SendBack(message):
                owner = self._owners.get(getattr(message, "session", ""))
                if owner is not None:
                    owner.reply(message)
            case SendExpress(message):
                if self._express is not None:
                    self._express.reply(message)
            case Count(counts):
                self._observer.counted(counts)
            case SendInBand(message):
                self._sender_down.claim()
                if isinstance(message, Fault) and message.device == self.device:
                    self._on_reply(message)  # the device that sent the wrong message hears of it as well
                self._log.sending(message)
                return False
            case _:
                return False
        return True

    def _carry_out(self, command: SendInBand) -> bool:
        return self._sender_down.send(command.message)

    def _on_link_ready(self) -> None:
        self._foreseen(self._sender_down.link_ready)

    def _on_reply(self, message: Message) -> None:
        """Pass a fault of the next device up, towards the draft node."""
        if isinstance(message, Fault):
            with self._lock:
                owner = self._owners.get(message.session)
            if owner is not None:
                owner.reply(message)

    def _on_lost(self, error: DeviceLostError) -> None:
        error = self._network_lost(error) or error
        with self._lock:
            for session, owner in self._owners.items():
                owner.reply(Fault(session, error.device, error.code, error.reason))
        fields = about(event="link_lost", pipeline=self._pipeline, peer=error.device, reason=error.reason)
        _log.warning("the next device is lost", extra=fields)
        self._end_pipeline(str(error), error if isinstance(error, DrainingError) else None)

    def _network_lost(self, error: DeviceLostError) -> DeviceLostError | None:
        """Return the error of this device if it heard nobody else either while the next device was silent."""
        others = [*self._in_band, *([self._express] if self._express is not None else [])]
        heard = [stream for stream in others if stream.silent_s < error.silence_s / 2]
        if heard or not (others and error.silence_s):
            return None
        names = ", ".join(dict.fromkeys([error.device, *(stream.peer for stream in others)]))
        return DeviceLostError(self.device, f"it has lost its network: it heard nothing of {names}")

    def _on_bug(self, error: Exception) -> None:
        reason = f"internal error: {type(error).__name__}: {error}"
        with self._lock:
            for session, owner in self._owners.items():
                owner.reply(Fault(session, self.device, DeviceError.code, reason))
        self._end_pipeline(reason)

    def _end_pipeline(self, reason: str, drained: DrainingError | None = None) -> None:
        """End the pipeline; `drained`: the next device was stopped."""
        drained = drained or self._drained
        with self._lock:
            if self.ended is not None:
                return
            self.ended = reason
            self._log.dropped(self._owners, reason)
            self._owners.clear()
            self._retained.clear()
            self._machine.drop_all()
        fields = about(event="pipeline_ended", pipeline=self._pipeline, reason=reason)
        _log.info("the pipeline has ended", extra=fields)
        self._foreseen(self._work)  # frees the caches
        link = self._sender_down.link
        if link is not None:
            telling = drained is not None and self._express is not None
            self._closing = asyncio.ensure_future(self._close_downstream(link, telling))
        for stream in [*self._in_band, *([self._express] if self._express is not None else [])]:
            stream.end(f"the pipeline has ended: {reason}", drained)
        self._on_ended(reason)

    async def _close_downstream(self, link: FrameLink, telling: bool) -> None:
        """Close the link to the next device; if `telling`, once the draft node knows why.

        To the draft node, the end of the last stage's link is the loss of that device.
        """
        if telling:
            await set_within(_TELL_S, self._told)
            await asyncio.sleep(_ARRIVE_S)
        await link.close()
