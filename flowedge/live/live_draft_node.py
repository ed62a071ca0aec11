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
from flowedge.core.request import Failed, Finished, Opened, Output, Request
from flowedge.engine.activity import REQUEST
from flowedge.engine.commands import DraftNodeCommand, PutOut, SendExpress, SendInBand
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.jobs import DraftExecutor, DraftJob, DraftResult, outcomes_of, sessions_of
from flowedge.engine.work_counts import CANCELLED, QUEUE_FULL, TOO_LARGE, Load, WorkCounts
from flowedge.live.compute_thread import Outcome
from flowedge.live.live_driver import LiveDriver
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.permitted_members import check_caller
from flowedge.live.route_links import OpenTo, RouteLinks
from flowedge.live.running_request import OutputHandover, RunningRequest, without_progress
from flowedge.live.transport.frame_link import LinkEvents
from flowedge.live.transport.server import InStream
from flowedge.live.work_timing import WorkTiming
from flowedge.protocol import wire
from flowedge.protocol.frame_bounds import FrameError
from flowedge.protocol.link_kind import LinkKind
from flowedge.strategies.events import TARGET

TOKEN_BYTES = 4  # of a token id that a middle model returns
_PASSED_ON = (Open, Prune, Close, Forget)  # by stages also while their compute threads stand still
CHECK_S = 0.5  # between two checks of the sessions' progress

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
        self._refusing: DeviceError | None = None
        self._links = {route: RouteLinks(timing, self._sender()) for route in machine.routes}
        self._last: dict[int, InStream] = {}  # from the last stage of each route
        self._moved = dict.fromkeys(machine.routes, time.monotonic())  # when it last brought anything back
        self._suspects: set[int] = set()  # routes that have ended a session by bringing nothing for it
        self._watch: asyncio.Task[None] | None = None
        self._handover = OutputHandover(self._lock, self._on_loop, self._deliver)

    @property
    def alive(self) -> bool:
        return self.lost is None

    def load(self) -> Load:
        load = self._machine.load()
        return replace(load, drained=not self._running and (self.lost is not None or load.drained))

    @property
    def spec(self) -> DraftNodeSpec:
        """What the pipeline takes and returns, and what requests may use."""
        return self._machine.spec

    def begin_drain(self, error: DeviceError) -> None:
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

    def configure(self, spec: DraftNodeSpec, limits: AdmissionLimits) -> None:
        """Serve requests that are prepared from now on by a spec, and open them within limits.

        No session is retained that was served before, because the spec may be that of another drafter.
        """
        with self._lock:
            machine = self._machine
            machine.spec, machine.admission.limits = spec, limits
            machine.target.forget(machine.target.names)
        self._changed()

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
            self._machine.advance_clock(time.monotonic())
            try:
                self._machine.start(session)
            except CapacityError as error:
                reason = TOO_LARGE if error.retry_after_s is None else QUEUE_FULL
                self._observer.counted(WorkCounts(refused=Counter((reason,))))
                raise
            waiting = self._machine.admission.is_waiting(session.name)
            running = self._running[session.name] = RunningRequest(session, waiting=waiting)
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
            self._machine.advance_clock(time.monotonic())
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
        if not isinstance(message, _PASSED_ON):
            self._moved[stream.route] = time.monotonic()
            self._suspects.discard(stream.route)
        deliver = partial(self._take, message, stream.route, stream.peer)
        self._timing.arrive(stream.kind, stream.departed, deliver)

    def malformed(self, stream: InStream, error: FrameError) -> None:
        """End the session that the frame of the last stage names, because it has lost a message."""
        if error.session:
            reason = f"{stream.peer} sent what cannot be read: {error}"
            self._take(Fault(error.session, self.device, ProtocolError.code, reason), stream.route)

    def closed(self, stream: InStream, reason: str) -> None:
        self._on_lost(DeviceLostError(stream.peer, reason))

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
            for each in session_messages(message):
                self._take_one(each, route, sender)
        self._changed()

    def _take_one(self, message: SessionMessage, route: int, sender: str) -> None:
        session = getattr(message, "session", "")
        if isinstance(message, Fault) and message.code == DeviceLostError.code and session in self._running:
            # A link between two stages is lost: nothing else can come through this pipeline either.
            lost = DeviceLostError(message.device, message.reason)
            lost.by_neighbour = True
            self._on_loop(self._on_lost, lost)
            return
        self._note_progress(session)
        self._machine.advance_clock(time.monotonic())
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

    def _poll(self, *, idle: bool) -> list[DraftNodeCommand]:
        ready = [route for route, links in self._links.items() if links.in_band.ready]
        commands = self._machine.poll(idle=idle, ready=ready)
        self._note_commands(commands)
        self._handover.put([command.output for command in commands if isinstance(command, PutOut)])
        for command in commands:
            if isinstance(command, SendInBand):
                self._links[command.route].in_band.claim()
        # In-band messages leave before express ones: the first stage waits for them.
        others = [command for command in commands if not isinstance(command, PutOut)]
        return sorted(others, key=lambda command: isinstance(command, SendExpress))

    def _note_commands(self, commands: Sequence[DraftNodeCommand]) -> None:
        """Take note of commands that are about to be carried out; called with the lock."""

    def _carry_out(self, command: SendInBand | SendExpress) -> bool:
        links = self._links[command.route]
        if isinstance(command, SendInBand):
            return links.in_band.send(command.message)
        with self._lock:
            links.put_express(command.message)
        return False

    def _deliver(self, output: Output) -> None:
        """Hand an output to the request that waits for it; called on the event loop."""
        running = self._running.get(output.session)
        if running is None:
            return
        self._note_progress(output.session)
        if isinstance(output, Opened):
            running.waiting = False
            self._note_opened(output.waited_s)
        if not isinstance(output, Finished | Failed):
            running.outputs.put_nowait(output)
            return
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
        self._machine.advance_clock(outcome.span.end)
        for session in sessions_of(job):
            self._note_progress(session)
        for each, result in outcomes_of(job, outcome.result):
            self._guard(each.session, partial(self._machine.finish, each, result))

    async def _watch_progress(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            now = time.monotonic()
            if self.load().waiting:
                with self._lock:
                    self._machine.advance_clock(now)
                    self._machine.admit()
                self._changed()
            for running in list(self._running.values()):
                if self._machine.target.waits(running.session):
                    running.progressed = now  # it waits for a session that makes progress or ends
            stuck = without_progress(self._running.values(), now, self._progress_s)
            for running in stuck:
                self._suspects.update(running.awaited_routes)
                self._give_up(running)
            if any(now - self._moved[route] > self._progress_s for route in self._suspects):
                reason = f"its pipeline stands still: nothing came back for {self._progress_s:g} s"
                lost = DeviceLostError(self.device, reason)
                lost.stands_still = True
                self._on_lost(lost)

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
        """Close all links; the stages take the end of the express stream as the end of the pipeline.

        A last stage that has no express stream yet takes the end of its link to this device so.
        """
        for stream in self._last.values():
            stream.end("the pipeline has ended")
        await asyncio.gather(*(links.close() for links in self._links.values()))
