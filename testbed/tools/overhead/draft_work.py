"""The draft node's bookkeeping: the time of its state machine from an event to the commands that follow.

The bundled pair answers on a virtual clock, at an emulated place. So trees, segments and draws are those of a
real answer, and the time is that of the state machine alone: no model, no link, no thread.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any
from unittest.mock import patch

from flowedge.core.messages import Credit, Segment
from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.choice import BUNDLED
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.jobs import GrowDraft, Verify
from flowedge.planning.in_process import virtual_pipeline
from flowedge.planning.measuring.scripted_models import SilentText
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.split import even_split
from flowedge.protocol.outbox import DraftNodeOutbox
from flowedge.strategies.auto.auto import Auto
from flowedge.strategies.flowspec import FlowSpec
from flowedge_testbed.emulation.emulate import emulate
from flowedge_testbed.emulation.place import Place
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.profiles import library

_STAGES = 4
_PLACE = {
    "devices": {"draft_node": "x86-2core", "stages": {"device": "x86-2core", "count": _STAGES}},
    "links": {"default": {"profile": "loopback"}},
    "emulated": {"model": BUNDLED},
}
_PROMPT = "Tell me a long story about two friends who build a boat."

RESULT, VERIFIED, LAYER, CREDIT, OTHER = "result", "verified", "layer", "credit", "other"
# Methods whose time is told apart from that of the call that they are part of.
_PARTS: tuple[tuple[Any, str, str], ...] = (
    (DraftSession, "take_result", "take in result"),
    (DraftSession, "next_verify", "make verification"),
    (DraftSession, "verified", "take in walk"),
    (DraftSession, "grown", "take in layer"),
    (DraftSession, "next_draft", "make layer"),
    (DraftSession, "prune", "prune"),
    (DraftNodeOutbox, "prune", "prune"),
    (DraftSession, "draft_segment", "make segment"),
    (Auto, "handle", "strategy"),
    (FlowSpec, "handle", "strategy"),
    (Auto, "send_step", "choose rows"),
)


@dataclass(frozen=True)
class EventWork:
    """What the events of one kind take the draft node, with the commands that are taken after them.

    Attributes:
        count: events.
        seconds: median of an event.
        parts: mean seconds of an event by part, scaled so that they add up to the median.
    """

    count: int
    seconds: float
    parts: dict[str, float]


def measure_draft_work(strategy: str, new_tokens: int) -> dict[str, EventWork]:
    """Return the work of an answer's decoding, by the kind of event.

    A segment's return is a `result`, and its verification's end is `verified`.
    """
    models = ModelSet.load(BUNDLED, (BUNDLED,))
    place = emulate(Place.model_validate(_PLACE), (BUNDLED,), 0, {}, library.SHIPPED)
    layers = models.checkpoint.config.num_hidden_layers
    pipeline = virtual_pipeline(
        models.checkpoint,
        even_split(layers, _STAGES, larger_first=True),
        ProfileCosts(place, 0, strategy),
        drafter=models.drafter,
        head=models.head,
        make_text=SilentText,
    )
    request = Request("work", models.encode(_PROMPT), SamplingParams(), new_tokens, strategy=strategy)
    clock = _EventClock()
    with clock.running():
        pipeline.generate(request)
    return {kind: _work_of(records) for kind, records in clock.records.items()}


def _work_of(records: list[dict[str, float]]) -> EventWork:
    sums = [sum(record.values()) for record in records]
    scale = median(sums) / sum(sums)
    parts: dict[str, float] = defaultdict(float)
    for record in records:
        for part, seconds in record.items():
            parts[part] += seconds * scale
    return EventWork(len(records), median(sums), dict(parts))


class _EventClock:
    """Times the calls that a driver makes, by the event that they answer and by part.

    Attributes:
        records: for each event of a kind, the seconds of its parts without the parts within them.
    """

    def __init__(self) -> None:
        self.records: dict[str, list[dict[str, float]]] = defaultdict(list)
        self._record: dict[str, float] = {}  # of the present event
        self._inner_s = [0.0]  # of the calls under way, what calls within them took

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time calls as long as the context lasts."""
        with ExitStack() as stack:
            for owner, name, part in (*_PARTS, (DraftNode, "poll", "rest")):
                timed = self._timed(part, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, timed))
            for name in ("receive", "finish"):
                event = self._event(self._timed("rest", getattr(DraftNode, name)))
                stack.enter_context(patch.object(DraftNode, name, event))
            yield

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            self._inner_s.append(0.0)
            started = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                seconds = time.perf_counter() - started
                within = self._inner_s.pop()
                self._inner_s[-1] += seconds
                self._record[part] = self._record.get(part, 0.0) + seconds - within

        return call

    def _event(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(node: DraftNode, given: object, *arguments: Any) -> Any:
            self._record = {}
            self.records[_kind(given)].append(self._record)
            return method(node, given, *arguments)

        return call


def _kind(given: object) -> str:
    match given:
        case Segment(committed=False):
            return RESULT
        case Verify():
            return VERIFIED
        case GrowDraft():
            return LAYER
        case Credit():
            return CREDIT
        case _:
            return OTHER
