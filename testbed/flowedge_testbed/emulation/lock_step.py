"""The lock-steps of FlowSpec's and PipeDec's systems, on the virtual clock.

A turn is a cycle of phases. A phase ends for all devices together, when nothing of it is left to do:

- FlowSpec (its published code): compute; send; decide. Every stage computes one segment, while the draft node
  drafts. Then all of them send what they have, at once. The draft node verifies the segment that came
  back, and no stage goes on before it has heard what is pruned.
- PipeDec (sections 3.4 and 3.4.3, appendix A): compute; send back; decide; send on. Results are synchronised
  before the transmission phase, so that what is pruned is not sent. The transfers of that phase follow the
  central schedule. The paper's last node decides by itself; here its result goes to the draft node.

Neighbouring stages may form groups (pipedec, 3.1 and 3.4). Those of a group compute one after the other and
hand on what they have computed, all within the compute phase.

The tokens are those of the pipeline without a barrier, because nothing but the times changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

from flowedge.core.messages import Message, Segment, SegmentBatch
from flowedge.engine.jobs import DraftBatch, DraftJob, ForwardBatch, StageJob
from flowedge.planning.virtual_pipeline import DRAFT_NODE, VirtualPipeline
from flowedge_testbed.emulation.system_choice import LockStepName
from flowedge_testbed.emulation.transmission import Transfer, at_once, central_schedule


class Phase(Enum):
    """A part of a turn."""

    COMPUTE = "stages compute a segment each, the draft node drafts"
    DECIDE = "the draft node verifies, and its prunes reach the stages"
    SEND = "every device sends"
    SEND_BACK = "the devices that send to the draft node do so"
    SEND_ON = "the other devices send"


@dataclass(frozen=True)
class LockStep:
    """The phases of a turn, and the schedule of the transfers in a phase."""

    phases: tuple[Phase, ...]
    schedule: Callable[[Sequence[Transfer]], list[float]]


LOCK_STEPS: dict[LockStepName, LockStep] = {
    "flowspec": LockStep((Phase.COMPUTE, Phase.SEND, Phase.DECIDE), at_once),
    "pipedec": LockStep((Phase.COMPUTE, Phase.SEND_BACK, Phase.DECIDE, Phase.SEND_ON), central_schedule),
}
# The lock-step of a method's own system. The published Naive PP sends and computes without turns.
OWN_LOCK_STEPS: dict[str, LockStepName] = {
    **dict.fromkeys(("pruned_pp", "flowspec_no_sbd", "flowspec_paper"), "flowspec"),
    **dict.fromkeys(("pipedec", "specpipe", "specpipe_db"), "pipedec"),
}

_Held: TypeAlias = Callable[[], None]


class LockStepPipeline(VirtualPipeline):
    """A virtual pipeline with a barrier behind each phase of a turn.

    A link carries one message with segments a turn, and the messages before it. The prompt goes in turns too.
    """

    def __init__(
        self, *args: Any, lock_step: LockStep, inner: frozenset[int] = frozenset(), **options: Any
    ) -> None:
        """inner: the stages whose link leads to a stage of the same group."""
        super().__init__(*args, **options)
        self._lock_step = lock_step
        self._inner = inner
        self._place = 0  # in the phases of the turn
        self._outside = 0  # events that clients have caused; no phase waits for them
        self._computed: set[int] = set()  # stages that have computed in this turn
        self._open: set[int] = set()  # links that take messages now
        self._taken: dict[int, list[tuple[Message, int]]] = {}  # messages and routes by link
        self._held: _Held | None = None  # begins a job that waits for the next phase that computes

    def step(self) -> bool:
        entered = 0
        while len(self._heap) == self._outside and entered < len(self._lock_step.phases):
            entered += 1
            self._place = (self._place + 1) % len(self._lock_step.phases)
            self._enter()
        return super().step()

    @property
    def _phase(self) -> Phase:
        return self._lock_step.phases[self._place]

    def _enter(self) -> None:
        match self._phase:
            case Phase.COMPUTE:
                self._computed.clear()
                held, self._held = self._held, None
                if held is not None:
                    held()
                for place in self._machines:
                    self._pump_stage(place)
                self._pump_draft_node()
            case Phase.DECIDE:
                self._pump_draft_node()
            case Phase.SEND:
                self._transmit([DRAFT_NODE, *self._between_groups()])
            case Phase.SEND_BACK:
                self._transmit([place for place in self._between_groups() if self._leads_back(place)])
            case Phase.SEND_ON:
                others = [place for place in self._between_groups() if not self._leads_back(place)]
                self._transmit([DRAFT_NODE, *others])

    def _between_groups(self) -> list[int]:
        """Return the stages whose links carry in the phases that send."""
        return [place for place in self._machines if place not in self._inner]

    def _leads_back(self, place: int) -> bool:
        """Return whether a stage sends to the draft node: the last stage, or that of a side route."""
        return not 0 <= place < len(self.stages) - 1

    def _transmit(self, places: Sequence[int]) -> None:
        """Have the links out of these devices carry what waits for them, by the schedule."""
        self._taken = {}
        for place in places:
            self._open.add(place)
            pump = self._pump_draft_node if place == DRAFT_NODE else partial(self._pump_stage, place)
            before = -1
            while before < len(self._taken.get(place, ())):
                before = len(self._taken.get(place, ()))
                pump()
            self._open.discard(place)
        parts = [
            (place, receiver, list(messages), self._costs.latency(place))
            for place, taken in self._taken.items()
            for receiver, messages in groupby(taken, key=lambda each: self._receiver(place, each[1]))
        ]
        starts = self._lock_step.schedule(
            [
                Transfer(place, receiver, latency + self._transfer_s(place, messages))
                for place, receiver, messages, latency in parts
            ]
        )
        for (place, _, messages, latency), start in zip(parts, starts, strict=True):
            left = self.now + start
            for message, route in messages:
                left = self._carry(place, message, route, left, latency)

    def _transfer_s(self, place: int, messages: Sequence[tuple[Message, int]]) -> float:
        return sum(self._costs.transfer(place, message) for message, _ in messages)

    def _send(self, sender: int, message: Message, route: int) -> None:
        if sender in self._inner:
            super()._send(sender, message, route)
            return
        self._taken.setdefault(sender, []).append((message, route))
        if isinstance(message, Segment | SegmentBatch):
            self._open.discard(sender)

    def _may_send(self, place: int) -> bool:
        if place in self._inner:
            return self._phase is Phase.COMPUTE and super()._may_send(place)
        return place in self._open

    def _may_compute(self, place: int) -> bool:
        if place == DRAFT_NODE:
            allowed = self._phase in (Phase.COMPUTE, Phase.DECIDE) and self._held is None
        else:
            allowed = self._phase is Phase.COMPUTE and place not in self._computed
        return allowed and super()._may_compute(place)

    def _occupy(self, place: int, job: StageJob | DraftJob, cost: float, finish: Callable[[], None]) -> None:
        begin = partial(super()._occupy, place, job, cost, finish)
        if self._phase is Phase.DECIDE and not (isinstance(job, DraftBatch) and job.verifies):
            self._held = begin
            return
        if isinstance(job, ForwardBatch):
            self._computed.add(place)
        begin()

    def _from_outside(self, time: float | None, action: Callable[[], None]) -> None:
        self._outside += 1

        def counted() -> None:
            self._outside -= 1
            action()

        super()._from_outside(time, counted)
