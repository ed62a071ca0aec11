"""The costs of an emulated pipeline whose devices and links change in the middle of a request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from flowedge.core.errors import BadRequestError
from flowedge.core.messages import Message
from flowedge.engine.jobs import DraftJob, ForwardBatch, StageJob
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.virtual_pipeline import DRAFT_NODE, places_of
from flowedge_testbed.emulation.place import PlaceEvent
from flowedge_testbed.trace import place_name

Events = tuple[PlaceEvent, ...]  # in the order of their times


def events_of(given: Sequence[PlaceEvent], pipeline: PipelineProfile) -> Events:
    """Return the events of a pipeline in the order of their times.

    Raises:
        BadRequestError: when the pipeline has no device of a name that an event gives.
    """
    known = [place_name(place) for place in places_of(pipeline.num_stages, sum(pipeline.side_counts))]
    for event in given:
        if event.changed not in known:
            raise BadRequestError(f"events: {event.changed} is not a device; there are {', '.join(known)}")
    return tuple(sorted(given, key=lambda event: event.at_s))


def slowdown(events: Events, device: str, now: float) -> float:
    """Return by what factor a device computes for longer at `now` than its profile says."""
    return _latest([event.slower for event in _happened(events, now) if event.device == device], 1.0)


def link_slowdown(events: Events, sender: str, now: float) -> float:
    """Return by what factor transfers out of a device take longer at `now` than the link's profile says."""
    return _latest([event.slower for event in _happened(events, now) if event.link == sender], 1.0)


def added_latency(events: Events, sender: str, now: float) -> float:
    """Return by how many seconds the latency out of a device is above the link's profile at `now`."""
    return _latest([event.add_ms for event in _happened(events, now) if event.link == sender], 0.0) / 1e3


def _happened(events: Events, now: float) -> list[PlaceEvent]:
    return [event for event in events if event.at_s <= now]


def _latest(given: Sequence[float | None], otherwise: float) -> float:
    return next((value for value in reversed(given) if value is not None), otherwise)


class ChangingCosts:
    """Costs to which events happen. What has begun before an event takes the time that it had.

    Attributes:
        now: returns the seconds since the request was handed over, which events are counted from.
    """

    def __init__(
        self, costs: ProfileCosts, events: Events, now: Callable[[], float] = lambda: float("-inf")
    ) -> None:
        """Change `costs` by events. Before a clock is given by `now`, none of them has happened."""
        self.now = now
        self._costs = costs
        self._events = events

    def stage_job(self, stage: int, job: StageJob) -> float:
        return self._costs.stage_job(stage, job) * self._slowdown(stage)

    def layer(self, stage: int, job: ForwardBatch) -> float:
        return self._costs.layer(stage, job) * self._slowdown(stage)

    def draft_job(self, job: DraftJob) -> float:
        return self._costs.draft_job(job) * self._slowdown(DRAFT_NODE)

    def conclude(self, place: int, job: StageJob | DraftJob) -> float:
        return self._costs.conclude(place, job) * self._slowdown(place)

    def receive(self, place: int, message: Message) -> float:
        return self._costs.receive(place, message) * self._slowdown(place)

    def speed(self, place: int, busy: Collection[int]) -> float:
        return self._costs.speed(place, busy)

    def transfer(self, sender: int, message: Message) -> float:
        slower = link_slowdown(self._events, place_name(sender), self.now())
        return self._costs.transfer(sender, message) * slower

    def latency(self, sender: int) -> float:
        return self._costs.latency(sender) + added_latency(self._events, place_name(sender), self.now())

    def row_bytes(self, sender: int) -> int:
        return self._costs.row_bytes(sender)

    def message_bytes(self, sender: int, message: Message) -> int:
        return self._costs.message_bytes(sender, message)

    def _slowdown(self, place: int) -> float:
        return slowdown(self._events, place_name(place), self.now())
