"""Sessions of `auto` on one pipeline: they send in steps, and draft in forwards of others."""

from __future__ import annotations

from flowedge.strategies.auto.measured import MeasuredPipeline
from tests.strategies.auto_scripts import layer_of, slow
from tests.strategies.script import Script, ask_together
from tests.support.seams import times_of


def two_sessions() -> list[Script]:
    measured = MeasuredPipeline()
    return [slow(2, measured, together=True) for _ in range(2)]


def draft(script: Script, seconds: float = 0.0) -> None:
    """Answer the layer that is asked for, with two likely children below each node."""
    assert script.grow is not None
    count = len(script.grow.nodes)
    script.layer([[1, 2]] * count, [[0.6, 0.3]] * count, seconds)


def test_sessions_send_together():
    one, two = two_sessions()
    draft(one)
    assert ask_together(one, two) == [0, 0], "the layer of the other is being drafted"
    draft(two)
    assert ask_together(one, two) == [1, 1]
    for each in (one, two):
        each.now = 9.0  # the first stage is free
        draft(each)
    assert ask_together(one, two) == [2, 2]
    one.now = two.now = 18.0
    one.verified([5], 1)
    draft(one)
    assert ask_together(one, two) == [2, 2], "the oldest step lasts until the other's segment is back"
    two.verified([5], 1)
    draft(two)
    assert ask_together(one, two) == [3, 3]


def test_a_session_whose_segments_died_holds_nobody_up():
    one, two = two_sessions()
    for each in (one, two):
        draft(each)
    assert ask_together(one, two) == [1, 1]
    for each in (one, two):
        each.now = 9.0
        draft(each)
    assert ask_together(one, two) == [2, 2]
    one.now = two.now = 18.0
    one.verified([5], 77)
    two.verified([5], 1)
    for each in (one, two):
        draft(each)
    assert ask_together(one, two) == [3, 3], "with the new root"
    assert one.returned() == []
    one.strategy.end()
    two.verified(two.in_flight[0][:1], 77)
    draft(two)
    assert ask_together(two) == [4], "no step lasts for a session that has ended"


def test_a_session_drafts_beside_another_what_is_worth_the_longer_forward():
    one, two = two_sessions()
    assert one.strategy.join_draft(4) is None, "its first layer has a forward of its own"
    for each in (one, two):
        draft(each, 50.0)
    assert one.strategy.join_draft(4) is None, "a layer is wanted already"
    assert ask_together(one, two) == [1, 1]
    one.now = two.now = 9.0
    for each in (one, two):
        draft(each, 50.0)
    assert ask_together(one, two) == [2, 2]
    times_of(one.strategy).observe_layer(layer_of(50.0, together=16), of_root=False)
    one.verified([5], 1)
    assert one.grow is None, "a forward that takes so long would delay the next verification"
    assert one.strategy.join_draft(4) is not None, "but a forward of others takes no longer with it"
