"""The virtual driver: the state machines of a pipeline in one process, on a heap of events.

Jobs are really computed, so that the tokens are the model's; their times are given by `Costs`. Events are
ordered by (time, sequence number), so that a run repeats exactly.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from flowedge.core.errors import CapacityError, DeadlineError, FlowEdgeError
from flowedge.core.messages import Message, session_messages, shared_bytes
from flowedge.core.request import Failed, Finished, Output, Request
from flowedge.engine.commands import Compute, DraftNodeCommand, PutOut, SendBack, SendExpress, SendInBand
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.jobs import (
    DraftExecutor,
    DraftJob,
    ForwardBatch,
    StageExecutor,
    StageJob,
    outcomes_of,
)
from flowedge.engine.stage.stage import Stage
from flowedge.planning.compute_slots import ComputeSlots
from flowedge.protocol.link_kind import LinkKind
from flowedge.strategies.events import TARGET

DRAFT_NODE = -1  # its place; stages have the places 0, 1, .. and the devices of side routes -2, -3, ..


def device_of(number: int) -> int:
    """Return the place of the device of this number, from 1 on, among those of all side routes."""
    return DRAFT_NODE - number


def number_of(place: int) -> int:
    """Return the number of the device of a side route that is at this place."""
    return DRAFT_NODE - place


def places_of(stages: int, sides: int, unused: int = 0) -> list[int]:
    """Return the places of the draft node, of its stages and of the devices of side routes, in this order.

    unused: the number of devices of side routes that are left out; a hierarchy of fewer models leaves out the
        first.
    """
    return [*range(DRAFT_NODE, stages), *(device_of(number) for number in range(1 + unused, 1 + sides))]


def route_lines(stages: int, side_counts: Sequence[int]) -> dict[int, list[int]]:
    """Return the places of the stages of each route, in order.

    Args:
        stages: the number of the target's stages.
        side_counts: the number of stages of each other route.
    """
    numbers = itertools.count(1)
    sides = [[device_of(number) for number in itertools.islice(numbers, count)] for count in side_counts]
    return dict(enumerate([list(range(stages)), *sides], start=TARGET))


def abort_time(start: float, now: float, layer_s: float) -> float:
    """Return when a forward that began at `start` stops if it is aborted `now`: when its layer ends."""
    if layer_s <= 0:
        return start
    return start + (int((now - start) / layer_s) + 1) * layer_s


class Costs(Protocol):
    """The costs of a pipeline, in seconds of virtual time. A device is named by its place."""

    def stage_job(self, stage: int, job: StageJob) -> float:
        """Return the compute time of a job on a stage."""

    def layer(self, stage: int, job: ForwardBatch) -> float:
        """Return the time between two places where a forward can be aborted."""

    def draft_job(self, job: DraftJob) -> float:
        """Return the compute time of a job on the draft node."""

    def conclude(self, place: int, job: StageJob | DraftJob) -> float:
        """Return the time from a job's end until what follows from it has been sent.

        The device begins no other job meanwhile.
        """

    def receive(self, place: int, message: Message) -> float:
        """Return the time from the arrival of an in-band message until the device has taken it in."""

    def speed(self, place: int, busy: Collection[int]) -> float:
        """Return how fast a device computes, as a share of its speed alone, while those at `busy` do."""

    def transfer(self, sender: int, message: Message) -> float:
        """Return the time for which an in-band message occupies the link out of `sender`."""

    def latency(self, sender: int) -> float:
        """Return the time from a message's departure to its arrival."""

    def message_bytes(self, sender: int, message: Message) -> int:
        """Return the size in bytes of a message on the link out of `sender`."""


class VirtualObserver:
    """Is told of every event, with its time in seconds of virtual time; subclasses record events."""

    def computed(self, place: int, job: StageJob | DraftJob, start: float, end: float) -> None:
        """A device has run a job."""

    def sent(self, sender: int, message: Message, start: float, left: float, arrives: float) -> None:
        """An in-band message occupied the link out of `sender` from `start` until it had `left`."""

    def expressed(self, stage: int, message: Message, start: float, arrives: float) -> None:
        """The draft node sent a message straight to a stage."""


ExpressDelay = Callable[[int, Message], float | None]
"""Returns the extra delay in seconds of an express message to the stage at a place; None loses it."""


# Time, sequence number, place of the device, action. The sequence number is unique, so that a comparison of
# two events never gets beyond it.
_Event: TypeAlias = tuple[float, int, int, Callable[[], None]]


@dataclass(frozen=True)
class TimedOutput:
    """An output for a client, with its time in seconds of virtual time."""

    time: float
    output: Output


class VirtualPipeline:
    """A draft node, its stages and the stages of side routes on a virtual clock."""

    def __init__(
        self,
        draft_node: DraftNode,
        draft_executor: DraftExecutor,
        stages: Sequence[Stage],
        stage_executors: Sequence[StageExecutor],
        costs: Costs,
        express_fault: ExpressDelay | None = None,
        observer: VirtualObserver | None = None,
        side_stages: Sequence[Stage] = (),
        side_executors: Sequence[StageExecutor] = (),
        side_counts: Sequence[int] | None = None,
    ) -> None:
        """Connect state machines and what computes for them.

        Args:
            side_stages: the stages of the routes beside the target's, in the order of the routes.
            side_counts: the number of stages of each of these routes; one each if not given.
        """
        self.draft_node = draft_node
        self.stages = list(stages)
        self.side_stages = list(side_stages)
        self.now = 0.0
        self.outputs: list[TimedOutput] = []
        self._draft_executor = draft_executor
        counts = [1] * len(side_stages) if side_counts is None else side_counts
        self._lines = route_lines(len(stages), counts)
        self._routes = {place: route for route, line in self._lines.items() for place in line}
        self._next = {
            (route, sender): receiver
            for route, line in self._lines.items()
            for sender, receiver in itertools.pairwise([DRAFT_NODE, *line, DRAFT_NODE])
        }
        _, *places = places_of(len(stages), len(side_stages))
        self._machines = dict(zip(places, [*stages, *side_stages], strict=True))
        self._stage_executors = dict(zip(places, [*stage_executors, *side_executors], strict=True))
        self._costs = costs
        self._express_fault = express_fault
        self._observer = observer or VirtualObserver()
        self._heap: list[_Event] = []
        self._sequence = 0
        self._slots = ComputeSlots([DRAFT_NODE, *self._machines], costs.speed, self._at)
        self._link_busy = dict.fromkeys([DRAFT_NODE, *self._machines], False)
        self._last_arrival = dict.fromkeys(self._link_busy, 0.0)
        self._last_tapped = dict.fromkeys(self._machines, 0.0)

    def start(self, request: Request, time: float | None = None) -> None:
        """Hand a request to the draft node at `time`; now if it is not given."""
        self._from_outside(time, lambda: self._hand_over(request))

    def cancel(self, session: str, time: float | None = None) -> None:
        """Cancel a session at `time`; now if it is not given."""
        self._from_outside(time, lambda: self.draft_node.cancel(session))

    def step(self) -> bool:
        """Let the next event happen; return whether there was an event."""
        deadline = self.draft_node.admission.next_deadline
        if deadline is not None and (not self._heap or self._heap[0][0] > deadline):
            self._at(max(deadline, self.now), DRAFT_NODE, self.draft_node.admit)
        if not self._heap:
            return False
        self.now, _, place, action = heapq.heappop(self._heap)
        if place == DRAFT_NODE:
            self.draft_node.advance_clock(self.now)
        else:
            self._machines[place].now = self.now
        action()
        if place == DRAFT_NODE:
            self._pump_draft_node()
        else:
            self._pump_stage(place)
        return True

    def run(self, max_events: int = 10_000_000) -> None:
        """Let events happen until none is left. Raises DeadlineError after `max_events` events."""
        for _ in range(max_events):
            if not self.step():
                return
        raise DeadlineError(f"the virtual pipeline still works after {max_events} events")

    def generate(self, request: Request) -> list[TimedOutput]:
        """Run one request and return its outputs; the error that it ends with is raised."""
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

    def _from_outside(self, time: float | None, action: Callable[[], None]) -> None:
        """Have a client act on the draft node at `time`; now if it is not given."""
        self._at(self.now if time is None else time, DRAFT_NODE, action)

    def _may_compute(self, place: int) -> bool:
        """Return whether a device may begin a job now."""
        return not self._slots[place].busy

    def _may_send(self, place: int) -> bool:
        """Return whether the link out of a device takes a message now."""
        return not self._link_busy[place]

    def _hand_over(self, request: Request) -> None:
        session = self.draft_node.prepare(request)
        try:
            self.draft_node.start(session)
        except CapacityError as error:
            if error.retry_after_s is None:
                raise
            # A queue that is full now refuses this request, as one that has kept it too long.
            self.outputs.append(TimedOutput(self.now, Failed(session.name, error)))

    def _at(self, time: float, place: int, action: Callable[[], None]) -> None:
        """Have an action happen to the device at a place, which then starts what it can."""
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, place, action))

    def _pump_draft_node(self) -> None:
        idle = self._may_compute(DRAFT_NODE)
        for command in self._draft_node_commands(idle=idle):
            match command:
                case Compute(job):
                    cost = self._costs.draft_job(job)
                    self._occupy(DRAFT_NODE, job, cost, partial(self._finish_draft, job))
                case SendExpress(message, route):
                    for place in self._lines[route]:
                        self._send_express(place, message)
                case SendInBand(message, route):
                    self._send(DRAFT_NODE, message, route)
                case PutOut(output):
                    self.outputs.append(TimedOutput(self.now, output))

    def _draft_node_commands(self, *, idle: bool) -> Iterator[DraftNodeCommand]:
        """Yield the commands of the draft node, whose routes share one link: it takes a message at a time."""
        for route in self.draft_node.routes:
            ready = (route,) if self._may_send(DRAFT_NODE) else ()
            yield from self.draft_node.poll(idle=idle and route == TARGET, ready=ready)

    def _pump_stage(self, index: int) -> None:
        stage, slot = self._machines[index], self._slots[index]
        if isinstance(slot.job, ForwardBatch) and slot.job.dead and slot.busy:
            self._end_early(index, slot.job)
        for command in stage.poll(idle=self._may_compute(index), ready=self._may_send(index)):
            match command:
                case Compute(job):
                    cost = self._costs.stage_job(index, job)
                    self._occupy(index, job, cost, partial(self._finish_stage, index, job))
                case SendBack(message):
                    delay = self._costs.latency(index) + self._costs.receive(DRAFT_NODE, message)
                    self._deliver_up(self.now + delay, index, message)
                case SendExpress(message):
                    self._send_tapped(index, message)
                case SendInBand(message):
                    self._send(index, message, self._routes[index])

    def _occupy(self, place: int, job: StageJob | DraftJob, cost: float, finish: Callable[[], None]) -> None:
        self._slots.occupy(place, job, self.now, cost, self._costs.conclude(place, job), finish)

    def _end_early(self, index: int, job: ForwardBatch) -> None:
        """Have an aborted forward end with its current layer."""
        ends = abort_time(self._slots[index].started, self.now, self._costs.layer(index, job))
        self._slots.end_by(index, self.now, ends)

    def _finish_draft(self, job: DraftJob) -> None:
        slot = self._slots[DRAFT_NODE]
        self._observer.computed(DRAFT_NODE, job, slot.started, slot.ended)
        self.draft_node.ran(job, slot.ended - slot.started)
        try:
            result = self._draft_executor.run(job)
        except FlowEdgeError as error:
            self.draft_node.fail(job, error)
        else:
            for part, outcome in outcomes_of(job, result):
                self.draft_node.finish(part, outcome)

    def _finish_stage(self, index: int, job: StageJob) -> None:
        stage, slot = self._machines[index], self._slots[index]
        self._observer.computed(index, job, slot.started, slot.ended)
        stage.ran(job, slot.ended - slot.started)
        try:
            output = self._stage_executors[index].run(job)
        except FlowEdgeError as error:
            stage.fail(job, error)
        else:
            stage.finish(job, output)

    def _send(self, sender: int, message: Message, route: int) -> None:
        """Have the link out of a device take a message for a route."""
        self._carry(sender, message, route, self.now)

    def _carry(
        self, sender: int, message: Message, route: int, start: float, latency: float | None = None
    ) -> float:
        """Have a message for a route begin to leave a device at `start`; return when it has left.

        latency: of the link, if it is known already.
        """
        self._link_busy[sender] = True
        machine = self.draft_node if sender == DRAFT_NODE else self._machines[sender]
        for part, share in shared_bytes(message, self._costs.message_bytes(sender, message)):
            machine.sent(getattr(part, "session", ""), share)
        left = start + self._costs.transfer(sender, message)
        receiver = self._receiver(sender, route)
        latency = self._costs.latency(sender) if latency is None else latency
        delay = latency + self._costs.receive(receiver, message)
        arrives = max(left + delay, self._last_arrival[sender])
        self._last_arrival[sender] = arrives  # jitter does not reorder a link
        self._observer.sent(sender, message, start, left, arrives)
        self._at(left, sender, lambda: self._link_busy.update({sender: False}))
        if receiver == DRAFT_NODE:
            self._deliver_up(arrives, sender, message)
        else:
            stage = self._machines[receiver]
            self._at(arrives, receiver, partial(_receive_all, stage, message))
        return left

    def _receiver(self, sender: int, route: int) -> int:
        """Return the place behind a device on a route, which begins and ends at the draft node."""
        return self._next[route, sender]

    def _send_express(self, place: int, message: Message) -> None:
        extra = 0.0 if self._express_fault is None else self._express_fault(place, message)
        if extra is not None:
            delay = self._costs.latency(DRAFT_NODE) + self._costs.receive(place, message) + extra
            stage = self._machines[place]
            self._observer.expressed(place, message, self.now, self.now + delay)
            self._at(self.now + delay, place, lambda: stage.receive(message, LinkKind.EXPRESS))

    def _send_tapped(self, place: int, message: Message) -> None:
        """Have a stage send a message straight to the draft node."""
        delay = self._costs.latency(place) + self._costs.receive(DRAFT_NODE, message)
        arrives = max(self.now + self._costs.transfer(place, message) + delay, self._last_tapped[place])
        self._last_tapped[place] = arrives
        self._deliver_up(arrives, place, message)

    def _deliver_up(self, time: float, sender: int, message: Message) -> None:
        """Have the draft node take in a message from the stage at a place."""
        route = self._routes[sender]
        name = self._machines[sender].device

        def receive() -> None:
            for part in session_messages(message):
                self.draft_node.receive(part, route, name)

        self._at(time, DRAFT_NODE, receive)


def _receive_all(stage: Stage, message: Message) -> None:
    for part in session_messages(message):
        stage.receive(part, LinkKind.IN_BAND)
