"""The driver of a draft node: it lets the state machine work with real links and real compute."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from flowedge.core.errors import (
    BadRequestError,
    CapacityError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    DrainingError,
    FlowEdgeError,
    ProtocolError,
)
from flowedge.core.log_fields import about
from flowedge.core.message_limits import SEGMENT_ROWS
from flowedge.core.messages import Fault, Message, SessionMessage, session_messages
from flowedge.core.pipeline_config import VerificationPlace
from flowedge.core.request import Failed, Finished, Opened, Output, Request
from flowedge.engine.activity import REQUEST
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.jobs import DraftExecutor, DraftJob, DraftResult, outcomes_of
from flowedge.engine.work_counts import CANCELLED, QUEUE_FULL, TOO_LARGE, WorkCounts
from flowedge.live.compute_thread import Outcome
from flowedge.live.live_driver import LiveDriver
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.permitted_members import check_caller
from flowedge.live.route_links import OpenTo, RouteLinks
from flowedge.live.running_request import RunningRequest
from flowedge.live.transport.frame_link import LinkEvents, LinkKind
from flowedge.live.transport.server import InStream
from flowedge.live.work_timing import WorkTiming
from flowedge.protocol import wire
from flowedge.protocol.frame_bounds import FrameError
from flowedge.strategies.events import TARGET

TOKEN_BYTES = 4  # of a token id that a middle model returns
CHECK_S = 0.5  # between two checks of the sessions' progress
OUTPUT_PAUSE_S = 0.01  # between two hand-overs of outputs, which take the interpreter's time from drafting

_log = logging.getLogger(__name__)


class LiveDraftNode(LiveDriver[DraftJob, DraftResult]):
    """The draft node of one pipeline, from its making to the loss of a device.

    Attributes:
        lost: the error of the device that was lost; None while the pipeline is whole.
    """

    _machine: DraftNode

    def __init__(
        self,
        machine: DraftNode,
        executor: DraftExecutor,
        timing: WorkTiming,
        *,
        progress_s: float,
        observer: LiveObserver = UNOBSERVED,
        last_stages: Mapping[int, str] | None = None,
    ) -> None:
        """progress_s: a session without any message, job or output for so long ends with a DeadlineError.

        last_stages: for each route, the member that is its last stage (see Member.uri); None in plaintext.
        """
        super().__init__(machine, executor.run, timing, observer)
        self.lost: DeviceLostError | None = None
        self._progress_s = progress_s
        self._running: dict[str, RunningRequest] = {}
        self._last_stages = last_stages
        self._refusing: DrainingError | None = None
        self._links = {
            route: RouteLinks(timing, self._sender(partial(self._next_outbound, route)))
            for route in machine.routes
        }
        self._last: dict[int, InStream] = {}  # from the last stage of each route
        self._watch: asyncio.Task[None] | None = None
        self._outputs: list[Output] = []  # that are not handed over yet
        self._handing_over = False  # whether `_put_out` will be called
        self._next_hand_over: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        return self.lost is None

    @property
    def num_waiting(self) -> int:
        return self._machine.admission.num_waiting

    @property
    def num_kept(self) -> int:
        return self._machine.target.num_kept

    @property
    def is_drained(self) -> bool:
        return not self._running and (self.lost is not None or not self._machine.num_sessions)

    def begin_drain(self, error: DrainingError) -> None:
        self._refusing = error

    def fail_sessions(self, error: DrainingError) -> None:
        with self._lock:
            for session in list(self._running):
                self._machine.fail_session(session, error)
        self._changed()

    async def connect(self, routes: Sequence[Sequence[str]], open_to: OpenTo) -> None:
        """Open the links of every route, given by the addresses of its stages, and begin to work.

        Raises what `open_to` raises, and DeviceLostError when a device was lost meanwhile.
        """
        for (route, links), stages in zip(self._links.items(), routes, strict=True):
            express = LinkEvents(partial(self._replied, route=route), self._on_lost)
            ready = partial(self._foreseen, links.in_band.link_ready)
            in_band = LinkEvents(partial(self._replied, route=route), self._on_lost, ready)
            await links.open(open_to, stages, express, in_band)
        if self.lost is not None:
            raise self.lost
        self._start()
        self._watch = asyncio.create_task(self._watch_progress())

    def draft_with(self, *, needs_features: bool) -> None:
        """Let requests that are prepared from now on draft: the executor has been given a drafter."""
        with self._lock:
            machine = self._machine
            machine.spec = replace(
                machine.spec, has_drafter=True, needs_features=needs_features, keeps_drafter=True
            )
            machine.target.forget(machine.target.names)  # with the true rows of the drafter before
        self._changed()

    def verify_at(self, place: VerificationPlace) -> None:
        """Have the tokens of requests that are prepared from now on drawn at a place."""
        with self._lock:
            self._machine.spec = replace(self._machine.spec, verification=place)

    def admit_within(self, limits: AdmissionLimits) -> None:
        """Open requests from now on within limits."""
        with self._lock:
            self._machine.admission.limits = limits

    def keep_taps(self, places: tuple[tuple[int, int], ...]) -> None:
        """Have stages keep what they tap for requests that are prepared from now on (see DraftNodeSpec)."""
        with self._lock:
            self._machine.spec = replace(self._machine.spec, kept_taps=places)

    def prepare(self, request: Request) -> DraftSession:
        """Return a session for a request, to be opened by `start`. Raises what DraftNode.prepare raises."""
        return self._machine.prepare(request)

    def start(self, session: DraftSession, arrived: float | None = None) -> RunningRequest:
        """Begin to serve a prepared request, or have it wait for room; `end` has to be called for it.

        Args:
            arrived: when the request arrived, on time.monotonic(); now if not given.

        Raises:
            BadRequestError: when a session of its name is open.
            CapacityError: when it can never fit, or too many wait.
            DeviceLostError: when the pipeline is broken.
            DrainingError: while the device is being stopped, and after a stage was.
        """
        if self._refusing is not None:
            raise self._refusing
        if self.lost is not None:
            raise type(self.lost)(self.lost.device, self.lost.reason)
        began = time.monotonic() if arrived is None else arrived
        with self._lock:
            self._machine.tell_time(time.monotonic())
            try:
                self._machine.start(session)
            except CapacityError as error:
                reason = TOO_LARGE if error.retry_after_s is None else QUEUE_FULL
                self._observer.counted(WorkCounts(refused=Counter((reason,))))
                raise
            waiting = self._machine.admission.is_waiting(session.name)
            running = self._running[session.name] = RunningRequest(session.name, waiting=waiting)
        self.timeline.add(session.name, REQUEST, began, began)
        if not waiting:
            self._note_opened(0.0)
        self._changed()
        return running

    def _note_opened(self, waited_s: float) -> None:
        self._observer.counted(WorkCounts(opened=1))
        self._observer.admitted(waited_s)

    def end(self, running: RunningRequest) -> None:
        """Forget a request; its session is cancelled if it is still open."""
        if self._running.pop(running.session, None) is not None and not running.concluded:
            self._count_end(running, CANCELLED)
        with self._lock:
            self._machine.tell_time(time.monotonic())
            self._machine.cancel(running.session)
        self._changed()

    def opened(self, stream: InStream) -> None:
        if stream.kind is not LinkKind.IN_BAND:
            raise BadRequestError(f"device {self.device} is a draft node; it takes no express stream")
        if stream.route not in self._links:
            raise BadRequestError(f"device {self.device} has no route {stream.route} for {stream.peer}")
        if self._last_stages is not None:
            check_caller(stream, self._last_stages[stream.route], f"the last stage of {self.device}")
        if self.lost is not None:
            raise DeviceError(self.device, f"the pipeline has ended: {self.lost}")
        if stream.route in self._last:
            last = self._last[stream.route].peer
            raise BadRequestError(f"device {self.device} has a last stage already: {last}")
        self._last[stream.route] = stream
        stream.max_frame_bytes = self._result_bytes(stream.route)

    def received(self, stream: InStream, message: Message) -> None:
        deliver = partial(self._take, message, stream.route, stream.peer)
        self._timing.arrive(stream.kind, stream.departed, deliver)

    def malformed(self, stream: InStream, error: FrameError) -> None:
        """End the session that the frame of the last stage names, because it has lost a message."""
        if error.session:
            reason = f"{stream.peer} sent what cannot be read: {error}"
            self._take(Fault(error.session, self.device, ProtocolError.code, reason), stream.route)

    def closed(self, stream: InStream, reason: str) -> None:
        self._on_lost(DeviceLostError(stream.peer, reason))

    def _next_outbound(self, route: int) -> Message | None:
        return self._machine.next_outbound(route)

    def _result_bytes(self, route: int) -> int:
        """Return the most bytes of the frame of a result on a route."""
        spec = self._machine.spec
        returned = spec.width * np.dtype(spec.dtype).itemsize if route == TARGET else TOKEN_BYTES
        return wire.segment_bytes(SEGMENT_ROWS, max(returned, self._timing.row_bytes))

    def _replied(self, message: Message, route: int) -> None:
        """Take in a message from a stage of a route that no segment brings, such as a credit."""
        self._timing.arrive(LinkKind.REPLY, 0.0, partial(self._take, message, route))

    def _take(self, message: Message, route: int, sender: str = "") -> None:
        """Take in a message; called in the link thread, or by the timing."""
        with self._lock:
            for part in session_messages(message):
                self._take_part(part, route, sender)
        self._changed()

    def _take_part(self, message: SessionMessage, route: int, sender: str) -> None:
        session = getattr(message, "session", "")
        if isinstance(message, Fault) and message.code == DeviceLostError.code and session in self._running:
            # A link between two stages is lost: nothing else can come through this pipeline either.
            self._on_loop(self._on_lost, DeviceLostError(message.device, message.reason))
            return
        self._note_progress(session)
        self._machine.tell_time(time.monotonic())
        self._guard(session, partial(self._machine.receive, message, route, sender))

    def _guard(self, session: str, step: Callable[[], None]) -> None:
        """Run a step of a session's strategy. A bug in it ends this session with an error, and no other."""
        try:
            step()
        except FlowEdgeError as error:
            self._machine.fail_session(session, error)
        except Exception as error:  # noqa: BLE001 (see above)
            _log.exception("a session failed", extra=about(event="session_failed", session=session))
            reason = f"internal error: {type(error).__name__}: {error}"
            self._machine.fail_session(session, DeviceError(self.device, reason))

    def _hand_out(self) -> None:
        for links in self._links.values():
            links.in_band.send_all()
        with self._lock:
            for route, links in self._links.items():
                while (message := self._machine.next_express(route)) is not None:
                    links.put_express(message)
            outputs: list[Output] = list(iter(self._machine.next_output, None))
            self._outputs += outputs
            ended = any(isinstance(output, Finished | Failed) for output in outputs)
            if ended or (outputs and not self._handing_over):
                self._handing_over = True
                self._on_loop(self._put_out)

    def _put_out(self) -> None:
        """Hand outputs to the requests that wait for them, and those of the next moments together."""
        if self._next_hand_over is not None:
            self._next_hand_over.cancel()
        with self._lock:
            outputs, self._outputs = self._outputs, []
            self._handing_over = bool(outputs)
        if outputs:
            self._next_hand_over = self._loop.call_later(OUTPUT_PAUSE_S, self._put_out)
        for output in outputs:
            running = self._running.get(output.session)
            if running is None:
                continue
            self._note_progress(output.session)
            if isinstance(output, Opened):
                running.waiting = False
                self._note_opened(output.waited_s)
            if not isinstance(output, Finished | Failed):
                running.outputs.put_nowait(output)
                continue
            sent = [links.take_sent_bytes(output.session) for links in self._links.values()]
            running.express_bytes = sum(sent)
            running.conclude(output)
            if isinstance(output, Finished):
                self._observer.decoded(output.counters)
            self._count_end(running, output.reason if isinstance(output, Finished) else output.error.code)

    def _count_end(self, running: RunningRequest, reason: str) -> None:
        """Count the end of a session, or of a request that has waited in vain."""
        ends = Counter((reason,))
        self._observer.counted(WorkCounts(refused=ends) if running.waiting else WorkCounts(ended=ends))

    def _note_progress(self, session: str) -> None:
        running = self._running.get(session)
        if running is not None:
            running.progressed = time.monotonic()

    def _finish(self, job: DraftJob, outcome: Outcome[DraftResult | None]) -> None:
        self._machine.tell_time(outcome.span.end)
        for part, result in outcomes_of(job, outcome.result):
            self._note_progress(part.session)
            self._guard(part.session, partial(self._machine.finish, part, result))

    async def _watch_progress(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            now = time.monotonic()
            if self.num_waiting:
                with self._lock:
                    self._machine.tell_time(now)
                    self._machine.admit()
                self._changed()
            for running in list(self._running.values()):
                if self._machine.target.waits(running.session):
                    running.progressed = now  # it waits for a session that makes progress or ends
                if not running.waiting and now - running.progressed > self._progress_s:
                    self._give_up(running)

    def _give_up(self, running: RunningRequest) -> None:
        error = DeadlineError(
            f"device {self.device}: session {running.session} saw no message, no result and no output "
            f"for {self._progress_s:g} s"
        )
        with self._lock:
            self._machine.fail_session(running.session, error)
        self._changed()
        if self._running.pop(running.session, None) is not None and not running.concluded:
            running.conclude(Failed(running.session, error))
            self._count_end(running, error.code)

    def _on_bug(self, error: Exception) -> None:
        self._on_lost(DeviceLostError(self.device, f"internal error: {type(error).__name__}: {error}"))

    def _on_lost(self, error: DeviceLostError) -> None:
        if self.lost is None:
            fields = about(event="link_lost", peer=error.device, reason=error.reason)
            _log.warning("the pipeline is broken", extra=fields)
            self._end(error)

    def _end_pipeline(self, reason: str) -> None:
        self._end(DeviceLostError(self.device, reason))
        if self._watch is not None:
            self._watch.cancel()

    def _end(self, error: DeviceLostError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        with self._lock:
            self._machine.device_lost(error)
        self._changed()
        self._closing = asyncio.ensure_future(self._close_links())

    async def _close_links(self) -> None:
        """Close all links; the stages take the end of the express stream as the end of the pipeline."""
        await asyncio.gather(*(links.close() for links in self._links.values()))
