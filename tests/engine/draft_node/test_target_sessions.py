"""What a draft node does with what it keeps when a device has no room, or has lost it."""

from __future__ import annotations

import pytest

from flowedge.core.messages import Close, Forget, Open
from flowedge.core.request import Finished
from tests.engine.draft_node.draft_node_loop import Loop, request
from tests.engine.rig import Rig


def loop(**limits: int) -> Loop:
    """A loop that keeps sessions, and has answered the request `s`."""
    made = Loop(kept_rows=1000, least_prefix=2, keeps_drafter=True)
    if limits:
        made.rig = Rig(**limits)
    made.start(request())
    made.run()
    made.check_finished("s")
    assert made.node.target.num_kept == made.rig.stage.num_kept == 1
    return made


def reused(made: Loop, session: str) -> int:
    end = made.of(session)[-1]
    assert isinstance(end, Finished)
    return end.counters.reused_rows


def forget_all(made: Loop) -> None:
    made.node.target.forget(made.node.target.names)
    made.run()
    assert not made.head.kept
    made.check_empty()


def test_the_next_request_begins_with_the_rows_of_the_last() -> None:
    made = loop()
    made.start(request("t"))
    made.run()
    made.check_finished("t", request("t"))
    assert reused(made, "t") == len(request().prompt) - 1
    forget_all(made)


def test_the_drafter_keeps_rows_of_a_session_that_has_drafted_nothing() -> None:
    made = Loop(kept_rows=1000, least_prefix=2, prefill_rows=8, keeps_drafter=True)
    made.start(request("s", max_new_tokens=1))
    made.run()
    made.start(request("t"))
    made.run()
    made.check_finished("t", request("t"))
    assert reused(made, "t") == len(request().prompt) - 1
    forget_all(made)


@pytest.mark.parametrize("strategy", ["flowspec", "autoregressive"])
def test_kept_sessions_make_room(strategy: str) -> None:
    capacity = Loop().node.prepare(request()).capacity
    made = loop(max_total_capacity=capacity + 10)
    other = request("t", strategy, prompt=(3, 3, 1))
    made.start(other)
    made.run()
    made.check_finished("t", other)
    told = [type(m) for m in made.sent if m.session in ("s", "t") and not isinstance(m, Close)]
    assert told.count(Forget) == 1
    opened = [m for m in made.sent if isinstance(m, Open) and m.session == "t"]
    assert len(opened) == 2, "it was opened again, and no client heard of it"
    forget_all(made)


def test_a_request_larger_than_the_stage_fails_all_the_same() -> None:
    made = loop(max_capacity=Loop().node.prepare(request()).capacity)
    made.start(request("t", max_new_tokens=500))
    made.run()
    assert made.error("t").code == "capacity"
    forget_all(made)


def test_rows_that_a_stage_has_lost_are_computed() -> None:
    made = loop()
    made.rig.receive(Forget("s"))
    made.start(request("t"))
    made.run()
    made.check_finished("t", request("t"))
    assert reused(made, "t") == 0
    forget_all(made)


def test_a_session_of_the_same_name_replaces_what_is_kept() -> None:
    made = loop()
    made.start(request("s"))
    made.run()
    assert made.node.target.num_kept == 1
    forget_all(made)


def test_a_session_that_waits_can_be_cancelled() -> None:
    made = Loop(kept_rows=1000, least_prefix=2, keeps_drafter=True)
    prompt = tuple(number % 4 for number in range(30))
    made.start(request("s", prompt=prompt))
    made.start(request("t", prompt=prompt))
    made.start(request("u", prompt=prompt))
    assert made.node.target.waits("t")
    made.node.cancel("t")
    made.run()
    assert not made.of("t")
    assert reused(made, "u") >= 20
    forget_all(made)
