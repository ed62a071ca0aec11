"""The virtual driver: the same machines in one process, on an event heap instead of a clock.

Compute really happens, so tokens are real; time is what `Costs` says. Events are ordered by (time, sequence),
so a run repeats exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from flowedge.core.errors import DeadlineError
from flowedge.core.messages import Message
from flowedge.core.request import Failed, Finished, Output, Request
from flowedge.engine.draft_node import DraftNode
from flowedge.engine.jobs import DraftExecutor, DraftJob, Forward, StageExecutor, StageJob
from flowedge.engine.stage import Stage
from flowedge.live.pacing import abort_time
from flowedge.strategies.events import TARGET

DRAFT_NODE = -1  # the draft node's place where stages are 0, 1, .. and middle models -2, -3, ..


def place_of(route: int) -> int:
    """The place of the middle model that a route leads to."""
    return DRAFT_NODE - route


def route_of(place: int) -> int:
    """The route on which what a device sends comes back to the draft node."""
    return DRAFT_NODE - place if place < DRAFT_NODE else TARGET


class Costs(Protocol):
    """How long things take, in seconds of virtual time; a stage is named by its place."""

    def stage_job(self, stage: int, job: StageJob) -> float:
        """Compute time of a job on a stage."""

    def layer(self, stage: int, job: Forward) -> float:
        """Time between two places where a computation can be aborted."""

    def draft_job(self, job: DraftJob) -> float:
        """Compute time of a job on the draft node."""

    def transfer(self, sender: int, message: Message) -> float:
        """How long an in-band message occupies the link out of `sender`."""

    def latency(self, sender: int) -> float:
        """How long a message is under way after it has left."""

    def message_bytes(self, sender: int, message: Message) -> int:
        """Size of a message on the link out of `sender`."""


class VirtualObserver(Protocol):
    """Told what happens and when, in seconds of virtual time; it changes nothing."""

    def computed(self, place: int, job: StageJob | DraftJob, start: float, end: float) -> None:
        """A device's lane ran a job."""

    def sent(self, sender: int, message: Message, start: float, left: float, arrives: float) -> None:
        """An in-band message occupied the link out of `sender` from `start` until it had `left`."""

    def expressed(self, stage: int, message: Message, start: float, arrives: float) -> None:
        """The draft node sent a message straight to a stage."""


ExpressDelay = Callable[[int, Message], float | None]
"""Extra delay in seconds of an express message to a stage; None loses it."""


@dataclass
class _ComputeSlot:
    busy: bool = False
    job: StageJob | DraftJob | None = None
    started: float = 0.0
    ends: float = 0.0
    run: int = 0  # told apart from an end that was put forward by an abort


# Time, sequence number, the device it happens to, what happens. The sequence number is unique, so that
# comparing two events never gets to the rest.
_Event: TypeAlias = tuple[float, int, int, Callable[[], None]]


@dataclass(frozen=True)
class TimedOutput:
    """Something a client gets, and when, in seconds of virtual time."""

    time: float
    output: Output


class VirtualPipeline:
    """A draft node, its stages and its middle models on a virtual clock."""

    def __init__(
        self,
        draft_node: DraftNode,
        draft_executor: DraftExecutor,
        stages: Sequence[Stage],
        stage_executors: Sequence[StageExecutor],
        costs: Costs,
        express_fault: ExpressDelay | None = None,
        observer: VirtualObserver | None = None,
        middles: Sequence[Stage] = (),
        middle_executors: Sequence[StageExecutor] = (),
    ) -> None:
        """middles: the one stage of each middle model, in the order of their routes."""
        self.draft_node = draft_node
        self.stages = list(stages)
        self.middles = list(middles)
        self.now = 0.0
        self.outputs: list[TimedOutput] = []
        self._draft_executor = draft_executor
        middle_places = [place_of(route) for route in range(1, 1 + len(self.middles))]
        self._machines = dict(enumerate(self.stages)) | dict(zip(middle_places, middles, strict=True))
        self._stage_executors = dict(enumerate(stage_executors)) | dict(
            zip(middle_places, middle_executors, strict=True)
        )
        self._costs = costs
        self._express_fault = express_fault
        self._observer = observer
        self._heap: list[_Event] = []
        self._sequence = 0
        self._draft_lane = _ComputeSlot()
        self._lanes = {place: _ComputeSlot() for place in self._machines}
        self._link_busy = dict.fromkeys([DRAFT_NODE, *self._machines], False)
        self._last_arrival = dict.fromkeys(self._link_busy, 0.0)

    def start(self, request: Request, time: float | None = None) -> None:
        """Hand a request to the draft node, now or at a time to come."""
        self._at(self.now if time is None else time, DRAFT_NODE, lambda: self.draft_node.start(request))

    def cancel(self, session: str, time: float | None = None) -> None:
        """Cancel a session, now or at a time to come."""
        self._at(self.now if time is None else time, DRAFT_NODE, lambda: self.draft_node.cancel(session))

    def step(self) -> bool:
        """Let the next event happen; says whether there was one."""
        if not self._heap:
            return False
        self.now, _, place, action = heapq.heappop(self._heap)
        if place == DRAFT_NODE:
            self.draft_node.tell_time(self.now)
        action()
        if place == DRAFT_NODE:
            self._pump_draft_node()
        else:
            self._pump_stage(place)
        return True

    def run(self, max_events: int = 10_000_000) -> None:
        """Let events happen until none is left. Raises DeadlineError after `max_events` of them."""
        for _ in range(max_events):
            if not self.step():
                return
        raise DeadlineError(f"the virtual pipeline still works after {max_events} events")

    def generate(self, request: Request) -> list[TimedOutput]:
        """Run one request to its end; raises the error it ended with."""
        begun = len(self.outputs)
        self.start(request)
        self.run()
        own = [timed for timed in self.outputs[begun:] if timed.output.session == request.session]
        last = own[-1].output if own else None
        if isinstance(last, Failed):
            raise last.error
        if not isinstance(last, Finished):
            raise DeadlineError(f"session {request.session} neither finished nor failed")
        return own

    def _at(self, time: float, place: int, action: Callable[[], None]) -> None:
        """Have something happen to one device; what it can start then is started."""
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, place, action))

    def _pump_draft_node(self) -> None:
        node, lane = self.draft_node, self._draft_lane
        if not lane.busy and (job := node.next_job()) is not None:
            cost = self._costs.draft_job(job)
            self._occupy(DRAFT_NODE, lane, job, cost, lambda: self._finish_draft(job))
        for route in node.routes:
            while (message := node.next_express(route)) is not None:
                for place in range(len(self.stages)) if route == TARGET else [place_of(route)]:
                    self._send_express(place, message)
            self._send_next(DRAFT_NODE, partial(node.next_outbound, route), route)
        while (output := node.next_output()) is not None:
            self.outputs.append(TimedOutput(self.now, output))

    def _pump_stage(self, index: int) -> None:
        stage, lane = self._machines[index], self._lanes[index]
        if not lane.busy and (job := stage.next_job()) is not None:
            cost = self._costs.stage_job(index, job)
            self._occupy(index, lane, job, cost, lambda: self._finish_stage(index, job))
        if isinstance(lane.job, Forward) and lane.job.dead and lane.busy:
            self._end_early(index, lane, lane.job)
        while (message := stage.next_upstream()) is not None:
            self._deliver_up(self.now + self._costs.latency(index), index, message)
        self._send_next(index, stage.next_outbound, route_of(index))

    def _occupy(
        self, place: int, lane: _ComputeSlot, job: Any, cost: float, finish: Callable[[], None]
    ) -> None:
        lane.busy, lane.job, lane.started, lane.ends = True, job, self.now, self.now + cost
        lane.run += 1
        self._end_at(lane.ends, place, lane, finish)

    def _end_at(self, time: float, place: int, lane: _ComputeSlot, finish: Callable[[], None]) -> None:
        run = lane.run

        def end() -> None:
            if lane.run == run and lane.busy:
                lane.busy = False
                finish()

        self._at(time, place, end)

    def _end_early(self, index: int, lane: _ComputeSlot, job: Forward) -> None:
        """An aborted computation ends where its current layer ends."""
        ends = abort_time(lane.started, self.now, self._costs.layer(index, job))
        if ends < lane.ends:
            lane.ends = ends
            lane.run += 1
            self._end_at(max(ends, self.now), index, lane, lambda: self._finish_stage(index, job))

    def _finish_draft(self, job: DraftJob) -> None:
        self._record(DRAFT_NODE, self._draft_lane, job)
        self.draft_node.record_busy(job.session, self.now - self._draft_lane.started)
        self.draft_node.finish(job, self._draft_executor.run(job))

    def _finish_stage(self, index: int, job: StageJob) -> None:
        self._record(index, self._lanes[index], job)
        stage = self._machines[index]
        stage.record_busy(job.session, self.now - self._lanes[index].started)
        stage.finish(job, self._stage_executors[index].run(job))

    def _record(self, place: int, lane: _ComputeSlot, job: StageJob | DraftJob) -> None:
        if self._observer is not None:
            self._observer.computed(place, job, lane.started, self.now)

    def _send_next(self, sender: int, take: Callable[[], Message | None], route: int) -> None:
        """Have the link out of a device take the next message for a route, unless it is busy."""
        if self._link_busy[sender]:
            return
        message = take()
        if message is None:
            return
        self._link_busy[sender] = True
        machine = self.draft_node if sender == DRAFT_NODE else self._machines[sender]
        machine.record_sent(getattr(message, "session", ""), self._costs.message_bytes(sender, message))
        left = self.now + self._costs.transfer(sender, message)
        arrives = max(left + self._costs.latency(sender), self._last_arrival[sender])
        self._last_arrival[sender] = arrives  # jitter does not reorder a link
        if self._observer is not None:
            self._observer.sent(sender, message, self.now, left, arrives)
        self._at(left, sender, lambda: self._free_link(sender))
        receiver = self._receiver(sender, route)
        if receiver == DRAFT_NODE:
            self._deliver_up(arrives, sender, message)
        else:
            stage = self._machines[receiver]
            self._at(arrives, receiver, lambda: stage.receive(message, express=False))

    def _receiver(self, sender: int, route: int) -> int:
        if sender == DRAFT_NODE and route != TARGET:
            return place_of(route)
        return sender + 1 if DRAFT_NODE <= sender < len(self.stages) - 1 else DRAFT_NODE

    def _free_link(self, sender: int) -> None:
        self._link_busy[sender] = False

    def _send_express(self, place: int, message: Message) -> None:
        extra = 0.0 if self._express_fault is None else self._express_fault(place, message)
        if extra is not None:
            delay = self._costs.latency(DRAFT_NODE) + extra
            stage = self._machines[place]
            if self._observer is not None:
                self._observer.expressed(place, message, self.now, self.now + delay)
            self._at(self.now + delay, place, lambda: stage.receive(message, express=True))

    def _deliver_up(self, time: float, sender: int, message: Message) -> None:
        """Have the draft node take in a message from a stage or a middle model."""
        route = route_of(sender)
        self._at(time, DRAFT_NODE, lambda: self.draft_node.receive(message, route))
