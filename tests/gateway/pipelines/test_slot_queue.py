"""The order of requests that wait for a pipeline."""

from __future__ import annotations

from flowedge.gateway.pipelines.pool import SlotQueue


def test_urgent_requests_go_first_then_those_that_came_first() -> None:
    queue = SlotQueue()
    batch, first, second = queue.enter(2), queue.enter(1), queue.enter(1)
    order = []
    while queue:
        for event in (batch, first, second):
            if queue.is_first(event):
                order.append(event)
                queue.leave(event)
    assert order == [first, second, batch]


def test_a_new_request_waits_behind_equally_urgent_ones() -> None:
    queue = SlotQueue()
    assert not queue.goes_before(0)
    queue.enter(1)
    assert [queue.goes_before(rank) for rank in (0, 1, 2)] == [False, True, True]


def test_the_first_is_woken() -> None:
    queue = SlotQueue()
    queue.wake()
    later, first = queue.enter(1), queue.enter(0)
    queue.wake()
    assert first.is_set() and not later.is_set()
    queue.leave(first)
    queue.wake()
    assert later.is_set()
    assert len(queue) == 1
