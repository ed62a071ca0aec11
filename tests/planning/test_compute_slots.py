"""Devices compute one job at a time, and slow each other down where they share cores."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection

import pytest

from flowedge.engine.jobs import DropCache
from flowedge.planning.compute_slots import ComputeSlots

JOB = DropCache("s")


class Clock:
    """A heap of events, and the slots of three devices."""

    def __init__(self, speed: Callable[[int, Collection[int]], float]) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._events = 0
        self.now = 0.0
        self.ended: dict[int, float] = {}
        self.slots = ComputeSlots(range(3), speed, self._at)

    def _at(self, time: float, _place: int, action: Callable[[], None]) -> None:
        self._events += 1
        heapq.heappush(self._heap, (time, self._events, action))

    def occupy(self, place: int, cost: float, concluding: float = 0.0) -> None:
        def finish() -> None:
            self.ended[place] = self.now

        self.slots.occupy(place, JOB, self.now, cost, concluding, finish)

    def run(self, until: float = 1000.0) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = until


def alone(_place: int, _busy: Collection[int]) -> float:
    return 1.0


def two_cores(_place: int, busy: Collection[int]) -> float:
    return min(1.0, 2 / len(busy))


def first_two_are_one(place: int, busy: Collection[int]) -> float:
    return 0.5 if place < 2 and {0, 1} <= set(busy) else 1.0


def test_a_slot_is_busy_until_what_follows_from_its_job_is_done() -> None:
    clock = Clock(alone)
    clock.occupy(0, 4, concluding=1)
    clock.run(4.5)
    assert clock.slots[0].busy
    clock.run()
    assert clock.ended == {0: 5}
    assert (clock.slots[0].started, clock.slots[0].ended) == (0, 4)
    assert not clock.slots[0].busy


def test_devices_of_their_own_do_not_slow_each_other_down() -> None:
    clock = Clock(alone)
    for place in range(3):
        clock.occupy(place, 3)
    clock.run()
    assert clock.ended == {0: 3, 1: 3, 2: 3}


def test_three_jobs_on_two_cores_share_them() -> None:
    clock = Clock(two_cores)
    clock.occupy(0, 4)
    clock.occupy(1, 4)
    clock.run(2)
    clock.occupy(2, 4)  # 2 seconds of work are left of the others, at two thirds of the speed
    clock.run()
    assert clock.ended[0] == clock.ended[1] == pytest.approx(5)
    # 2 of its 4 seconds are done at 5, and the others have gone.
    assert clock.ended[2] == pytest.approx(7)


def test_two_places_of_one_device_slow_each_other_down_and_no_other() -> None:
    clock = Clock(first_two_are_one)
    clock.occupy(0, 4)
    clock.occupy(2, 4)
    clock.run(2)
    clock.occupy(1, 1)  # for two seconds, in which half of the other's remaining two are done
    clock.run()
    assert clock.ended == {0: 5, 1: 4, 2: 4}


def test_the_end_of_a_job_is_told_without_what_follows_from_it_at_any_speed() -> None:
    clock = Clock(two_cores)
    for place in range(3):
        clock.occupy(place, 4, concluding=2)
    clock.run()
    assert clock.ended[0] == pytest.approx(9)
    assert clock.slots[0].ended == pytest.approx(6)


def test_an_aborted_job_ends_earlier_and_never_later() -> None:
    clock = Clock(alone)
    clock.occupy(0, 8, concluding=1)
    clock.run(1)
    clock.slots.end_by(0, clock.now, 2.5)
    clock.slots.end_by(0, clock.now, 20)
    clock.run()
    assert clock.ended == {0: 3.5}
