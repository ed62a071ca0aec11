"""Energy from the readings of boards' power: their mean, and none where a board does not tell."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from flowedge.core.errors import DeviceLostError
from flowedge_testbed.live.power_meter import PowerMeter


def readings(*watts: float | None) -> Callable[[], float | None]:
    """Return what gives these readings, and the last one again and again."""
    left = list(watts)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def wait_for(meter: PowerMeter, count: int) -> None:
    deadline = time.monotonic() + 10
    while meter.readings < count and time.monotonic() < deadline:
        time.sleep(0.001)


def test_energy_is_the_mean_power_during_the_request() -> None:
    with PowerMeter(readings(5.0, 20.0), period_s=0.001) as meter:
        wait_for(meter, 3)
    assert meter.joules(2.0) == pytest.approx(40.0), "the reading from before the request does not count"


def test_a_short_request_has_the_first_reading() -> None:
    with PowerMeter(readings(5.0), period_s=60) as meter:
        pass
    assert meter.joules(2.0) == pytest.approx(10.0)


def test_a_board_without_a_monitor_gives_no_energy() -> None:
    with PowerMeter(readings(None), period_s=0.001) as meter:
        pass
    assert meter.joules(2.0) is None


def test_a_board_that_is_lost_gives_no_energy() -> None:
    first = iter([7.0])

    def read() -> float:
        for watts in first:
            return watts
        raise DeviceLostError("v1", "it is gone")

    with PowerMeter(read, period_s=0.001) as meter:
        deadline = time.monotonic() + 10
        while meter.readings and time.monotonic() < deadline:
            time.sleep(0.001)
    assert meter.joules(2.0) is None
