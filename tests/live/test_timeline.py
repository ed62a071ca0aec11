"""The timeline of a device: bounded, per session, and checked when it comes off the wire."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flowedge.core.errors import ProtocolError
from flowedge.engine.activity import ACTIVITIES, job_activity
from flowedge.engine.jobs import DropCache, Forward
from flowedge.live.timeline import MAX_EVENTS, Timeline, TimelineEvent, decode, encode
from flowedge.v1 import agent_pb2 as pb
from tests.support.session_jobs import batch_of


def event(number: int) -> TimelineEvent:
    return TimelineEvent("forward", float(number), number + 0.5, number)


def test_sessions_are_apart_and_in_order() -> None:
    timeline = Timeline()
    for number in range(6):
        timeline.add("ab"[number % 2], *event(number))
    assert timeline.of("a") == ([event(0), event(2), event(4)], 0)
    assert timeline.of("b") == ([event(1), event(3), event(5)], 0)
    assert timeline.of("never") == ([], 0)


def test_the_oldest_events_go_first_and_are_counted() -> None:
    timeline = Timeline(max_events=10)
    for number in range(7):
        timeline.add("old", *event(number))
    for number in range(6):
        timeline.add("new", *event(number))
    assert timeline.of("old") == ([event(number) for number in range(3, 7)], 3)
    assert timeline.of("new") == ([event(number) for number in range(6)], 0)
    for number in range(6, 30):
        timeline.add("new", *event(number))
    assert timeline.of("old") == ([], 7)
    assert timeline.of("new") == ([event(number) for number in range(20, 30)], 20)
    timeline.add("old", *event(7))
    events, dropped = timeline.of("old")
    assert (len(events), dropped) == (0, 8)  # what is left of it could be mistaken for the whole


def test_only_the_last_sessions_are_kept() -> None:
    timeline = Timeline(max_events=10, max_sessions=3)
    for number in range(50):
        timeline.add(f"s{number}", *event(number))
        timeline.add(f"s{number}", *event(number + 1))
    assert [len(timeline.of(f"s{number}")[0]) for number in range(45, 50)] == [0, 0, 2, 2, 2]
    for number in range(9):
        timeline.add("s49", *event(number))
    assert sum(len(timeline.of(f"s{number}")[0]) for number in range(50)) == 10


def test_a_forward_is_named_by_what_became_of_it() -> None:
    none = np.zeros(0, dtype=np.int64)

    def forward(rows: int, **changes: bool) -> Forward:
        positions = np.arange(rows)
        return Forward("s", 0, none, 0, 0, none, positions, positions.astype(np.int32), **changes)

    assert job_activity(batch_of(forward(3, committed=True))) == ("prefill", 3)
    assert job_activity(batch_of(forward(1, committed=True))) == ("forward", 1)
    assert job_activity(batch_of(forward(3))) == ("forward", 3)
    assert job_activity(batch_of(forward(3, dead=True))) == ("aborted", 3)
    assert job_activity(DropCache("s")) == ("cache", 0)


def test_every_activity_crosses_the_wire() -> None:
    events = [TimelineEvent(kind, 1.5 * i, 1.5 * i + 1, i) for i, kind in enumerate(ACTIVITIES)]
    sent = encode(events, 7).SerializeToString()
    assert decode(pb.TimelineReply.FromString(sent), "v1") == (events, 7)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (pb.TimelineReply(activity=[1, 2], start_s=[0], end_s=[1], rows=[1]), "2 kinds, 1 starts"),
        (pb.TimelineReply(activity=[0], start_s=[0], end_s=[1], rows=[1]), "unknown activity 0"),
        (pb.TimelineReply(activity=[99], start_s=[0], end_s=[1], rows=[1]), "unknown activity 99"),  # type: ignore[list-item]
        (pb.TimelineReply(activity=[1], start_s=[2], end_s=[1], rows=[1]), "from 2.0 to 1.0"),
        (pb.TimelineReply(activity=[1], start_s=[0], end_s=[math.nan], rows=[1]), "from 0.0 to nan"),
        (pb.TimelineReply(activity=[1], start_s=[-math.inf], end_s=[1], rows=[1]), "from -inf"),
        (encode([event(0)] * (MAX_EVENTS + 1), 0), f"at most {MAX_EVENTS}"),
    ],
)
def test_a_timeline_that_makes_no_sense_is_refused(reply: pb.TimelineReply, said: str) -> None:
    with pytest.raises(ProtocolError, match=said) as caught:
        decode(reply, "v1")
    assert "device v1" in str(caught.value)
