"""A draft node at work: drives the state machine with real links and real compute.

Everything here runs on the event loop but the jobs, which run in the compute lane.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from flowedge.core.errors import (
    BadRequestError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    DrainingError,
    FlowEdgeError,
    ProtocolError,
)
from flowedge.core.log_fields import about
from flowedge.core.messages import Fault, Message
from flowedge.core.request import Failed, Finished, Output, Request
from flowedge.engine.activity import REQUEST, TRANSFER, job_activity, message_rows
from flowedge.engine.draft_node import DraftNode
from flowedge.engine.jobs import DraftExecutor
from flowedge.engine.work_counts import CANCELLED, WorkCounts
from flowedge.live.express import ExpressFault
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.pump import Pump
from flowedge.live.route_links import OpenLink, RouteLinks, RouteOpener
from flowedge.live.timeline import Timeline
from flowedge.live.transport.link import LinkKind
from flowedge.live.transport.server import InStream
from flowedge.live.work_timing import WorkTiming
from flowedge.net.deadline import within
from flowedge.protocol.wire import FrameError

CHECK_S = 0.5  # how often sessions are looked at for progress

_log = logging.getLogger(__name__)


class RunningRequest:
    """One request that is being served."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.outputs: asyncio.Queue[Output] = asyncio.Queue()
        self.progressed = time.monotonic()
        self.express_bytes = 0
        self.concluded = False

    def conclude(self, output: Output) -> None:
        """Put out the last output."""
        self.concluded = True
        self.outputs.put_nowait(output)

    async def next_output(self, timeout_s: float) -> Output | None:
        """The next output, or None when there is none within the time."""
        try:
            return await within(timeout_s, self.outputs.get(), "no output")
        except DeadlineError:
            return None


class LiveDraftNode:
    """The draft node of one pipeline, from its making to the loss of a device.

    `lost` says which device was lost; `timeline` is what was done and when.
    """

    def __init__(
        self,
        machine: DraftNode,
        executor: DraftExecutor,
        timing: WorkTiming,
        *,
        progress_s: float,
        express_fault: ExpressFault | None = None,
        observer: LiveObserver = UNOBSERVED,
    ) -> None:
        """progress_s: a session that sees no message, job or output for so long ends with a DeadlineError."""
        self.lost: DeviceLostError | None = None
        self.timeline = Timeline()
        self._machine = machine
        self._executor = executor
        self._timing = timing
        self._progress_s = progress_s
        self._observer = observer
        self._generations: dict[str, RunningRequest] = {}
        self._fault = express_fault
        self._refusing: DrainingError | None = None
        self._links = {route: RouteLinks() for route in machine.routes}
        self._last: dict[int, InStream] = {}
        self._compute_pump = Pump("compute", self._compute, self._on_bug)
        self._send_pumps = [
            Pump("send", partial(self._send, route), self._on_bug) for route in machine.routes
        ]
        self._watch: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def device(self) -> str:
        """The name of this device."""
        return self._machine.device

    @property
    def num_sessions(self) -> int:
        """Sessions that are open here."""
        return self._machine.num_sessions

    @property
    def is_drained(self) -> bool:
        """Whether no request is being served, and no session is open anywhere on the pipeline."""
        return not self._generations and (self.lost is not None or not self._machine.num_sessions)

    def begin_drain(self, error: DrainingError) -> None:
        """Have requests go on, and every new one refused with an error."""
        self._refusing = error

    def fail_sessions(self, error: DrainingError) -> None:
        """End every request with an error."""
        for session in list(self._generations):
            self._machine.fail_session(session, error)
        self._changed()

    async def connect(
        self, open_first: OpenLink, open_express: Sequence[OpenLink], middles: Sequence[RouteOpener] = ()
    ) -> None:
        """Open the in-band link to the first stage and an express link to every stage; and to middle models.

        Raises what they raise; DeviceLostError when a device was lost meanwhile.
        """
        openers = [RouteOpener(open_first, open_express), *middles]
        for (route, links), opener in zip(self._links.items(), openers, strict=True):
            take, replied = partial(self._take, route=route), partial(self._replied, route=route)
            await links.open(opener, take, replied, self._on_lost)
        if self.lost is not None:
            raise self.lost
        for links in self._links.values():
            links.start_express(self._fault)
        self._compute_pump.start()
        for pump in self._send_pumps:
            pump.start()
        self._watch = asyncio.create_task(self._watch_progress())

    def draft_with(self, *, needs_features: bool) -> None:
        """See DraftNode.draft_with."""
        self._machine.draft_with(needs_features=needs_features)

    def generate(self, request: Request, arrived: float | None = None) -> RunningRequest:
        """Begin to serve a request; end it with `end`.

        arrived: when it arrived, on time.monotonic(); now if not given.
        Raises BadRequestError or CapacityError for one that cannot be served, DeviceLostError when the
        pipeline is broken, DrainingError while the device is being stopped.
        """
        if self._refusing is not None:
            raise self._refusing
        if self.lost is not None:
            raise DeviceLostError(self.lost.device, self.lost.reason)
        self._machine.tell_time(time.monotonic())
        self._machine.start(self._machine.prepare(request))
        began = time.monotonic() if arrived is None else arrived
        self.timeline.add(request.session, REQUEST, began, began)
        generation = self._generations[request.session] = RunningRequest(request.session)
        self._observer.counted(WorkCounts(opened=1))
        self._changed()
        return generation

    def end(self, generation: RunningRequest) -> None:
        """The client has its result, or wants none; cancels what is still going on."""
        if self._generations.pop(generation.session, None) is not None and not generation.concluded:
            self._count_end(CANCELLED)
        self._machine.cancel(generation.session)
        self._changed()

    async def stop(self, reason: str) -> None:
        """End all sessions and links."""
        self._end(DeviceLostError(self.device, reason))
        if self._watch is not None:
            self._watch.cancel()
        await self._compute_pump.stop()
        for pump in self._send_pumps:
            await pump.stop()
        self._timing.stop()
        if self._closing is not None:
            await self._closing

    def opened(self, stream: InStream) -> None:
        """The last stage asks for a stream; see StreamOwner."""
        if stream.kind is not LinkKind.IN_BAND:
            raise BadRequestError(f"device {self.device} is a draft node; it takes no express stream")
        if self.lost is not None:
            raise DeviceError(self.device, f"the pipeline has ended: {self.lost}")
        if stream.route not in self._links:
            raise BadRequestError(f"device {self.device} has no route {stream.route} for {stream.peer}")
        if stream.route in self._last:
            last = self._last[stream.route].peer
            raise BadRequestError(f"device {self.device} has a last stage already: {last}")
        self._last[stream.route] = stream

    def received(self, stream: InStream, message: Message) -> None:
        """A message has come from the last stage of a route; see StreamOwner."""
        self._timing.arrive(LinkKind.IN_BAND, stream.departed, lambda: self._take(message, stream.route))

    def _replied(self, message: Message, route: int) -> None:
        """The first stage of a route has something to say, such as a credit."""
        self._timing.arrive(LinkKind.REPLY, 0.0, lambda: self._take(message, route))

    def malformed(self, stream: InStream, error: FrameError) -> None:
        """A frame of the last stage could not be read: the session it names has lost something."""
        if error.session:
            reason = f"{stream.peer} sent what cannot be read: {error}"
            self._take(Fault(error.session, self.device, ProtocolError.code, reason), stream.route)

    def closed(self, stream: InStream, reason: str) -> None:
        """The last stage is gone; see StreamOwner."""
        self._on_lost(DeviceLostError(stream.peer, reason))

    def _take(self, message: Message, route: int) -> None:
        session = getattr(message, "session", "")
        if (
            isinstance(message, Fault)
            and message.code == DeviceLostError.code
            and session in self._generations
        ):
            # Between two stages a link is lost: nothing else can come through this pipeline either.
            self._on_lost(DeviceLostError(message.device, message.reason))
            return
        self._note_progress(session)
        self._machine.tell_time(time.monotonic())
        self._guard(session, lambda: self._machine.receive(message, route))
        self._changed()

    def _guard(self, session: str, step: Callable[[], None]) -> None:
        """A bug in one session's strategy ends that session with an error, and no other."""
        try:
            step()
        except FlowEdgeError as error:
            self._machine.fail_session(session, error)
        except Exception as error:  # noqa: BLE001 (see above)
            _log.exception("a session failed", extra=about(event="session_failed", session=session))
            reason = f"internal error: {type(error).__name__}: {error}"
            self._machine.fail_session(session, DeviceError(self.device, reason))

    def _changed(self) -> None:
        """Hand out what there is and wake whatever may have work now."""
        self._timing.changed()
        self._flush()
        self._compute_pump.wake()

    def _flush(self) -> None:
        """Hand out what goes to stages and clients."""
        for route, links in self._links.items():
            while (message := self._machine.next_express(route)) is not None:
                links.put_express(message)
        while (output := self._machine.next_output()) is not None:
            self._hand_out(output)
        for pump in self._send_pumps:
            pump.wake()

    def _hand_out(self, output: Output) -> None:
        generation = self._generations.get(output.session)
        if generation is None:
            return
        self._note_progress(output.session)
        if not isinstance(output, Finished | Failed):
            generation.outputs.put_nowait(output)
            return
        sent = [links.take_sent_bytes(output.session) for links in self._links.values()]
        generation.express_bytes = sum(sent)
        generation.conclude(output)
        if isinstance(output, Finished):
            self._observer.decoded(output.counters)
        self._count_end(output.reason if isinstance(output, Finished) else output.error.code)

    def _count_end(self, reason: str) -> None:
        self._observer.counted(WorkCounts(ended=Counter((reason,))))

    def _note_progress(self, session: str) -> None:
        generation = self._generations.get(session)
        if generation is not None:
            generation.progressed = time.monotonic()

    async def _compute(self) -> bool:
        job = self._machine.next_job()
        self._flush()  # looking for a job ends sessions whose results make no sense
        if job is None:
            return False
        try:
            result, span = await self._timing.run_job(job, lambda: self._executor.run(job))
        except FlowEdgeError as error:
            self._machine.fail(job, error)
        else:
            self._note_progress(job.session)
            self._machine.record_busy(job.session, span.seconds)
            kind, rows = job_activity(job)
            self.timeline.add(job.session, kind, span.start, span.end, rows)
            self._observer.computed(kind, span.seconds, rows)
            self._machine.tell_time(span.end)
            self._guard(job.session, lambda: self._machine.finish(job, result))
        self._changed()
        return True

    async def _send(self, route: int) -> bool:
        message, link = self._machine.next_outbound(route), self._links[route].in_band
        if message is None or link is None:
            return False
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

    async def _watch_progress(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            now = time.monotonic()
            for generation in list(self._generations.values()):
                if now - generation.progressed > self._progress_s:
                    self._give_up(generation)

    def _give_up(self, generation: RunningRequest) -> None:
        error = DeadlineError(
            f"device {self.device}: session {generation.session} saw no message, no result and no output "
            f"for {self._progress_s:g} s"
        )
        self._machine.fail_session(generation.session, error)
        self._changed()
        if self._generations.pop(generation.session, None) is not None and not generation.concluded:
            generation.conclude(Failed(generation.session, error))
            self._count_end(error.code)

    def _on_bug(self, error: Exception) -> None:
        self._on_lost(DeviceLostError(self.device, f"internal error: {type(error).__name__}: {error}"))

    def _on_lost(self, error: DeviceLostError) -> None:
        if self.lost is None:
            fields = about(event="link_lost", peer=error.device, reason=error.reason)
            _log.warning("the pipeline is broken", extra=fields)
            self._end(error)

    def _end(self, error: DeviceLostError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        self._machine.device_lost(error)
        self._changed()
        self._closing = asyncio.ensure_future(self._close_links())

    async def _close_links(self) -> None:
        """The stages take the end of the express stream as the end of the pipeline."""
        await asyncio.gather(*(links.close() for links in self._links.values()))
