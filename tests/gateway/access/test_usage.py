"""Limits of a key: how much, and for how long it has to wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.core.errors import BadRequestError
from flowedge.gateway.access.keys import KeyLimits
from flowedge.gateway.access.usage import DAY_S, MINUTE_S, KeyUsage, Window
from flowedge.gateway.errors import ApiError


def wait_of(usage: KeyUsage, limits: KeyLimits, now: float) -> float:
    with pytest.raises(ApiError) as refused:
        usage.begin(limits, now)
    assert refused.value.status == 429
    assert refused.value.retry_after_s is not None
    return refused.value.retry_after_s


def test_requests_a_minute() -> None:
    usage, limits = KeyUsage(), KeyLimits(requests_per_minute=2)
    for now in (0.0, 10.0):
        usage.begin(limits, now)
        usage.end()
    assert wait_of(usage, limits, 20.0) == 40.0
    usage.begin(limits, 60.0)
    assert wait_of(usage, limits, 60.0) == 10.0


def test_concurrent_requests() -> None:
    usage, limits = KeyUsage(), KeyLimits(concurrent=1)
    usage.begin(limits, 0.0)
    assert wait_of(usage, limits, 1.0) > 0
    usage.end()
    usage.begin(limits, 2.0)


def test_tokens_of_a_minute_and_of_a_day() -> None:
    usage, limits = KeyUsage(), KeyLimits(tokens_per_minute=100, tokens_per_day=150)
    usage.add_tokens(120, 0.0)
    assert wait_of(usage, limits, 15.0) == 45.0
    usage.begin(limits, 61.0)
    usage.add_tokens(40, 61.0)
    assert wait_of(usage, limits, 200.0) == DAY_S - 200.0


def test_a_refused_request_is_not_counted() -> None:
    usage, limits = KeyUsage(), KeyLimits(requests_per_minute=1, tokens_per_minute=10)
    usage.add_tokens(10, 0.0)
    wait_of(usage, limits, 1.0)
    usage.begin(limits, 61.0)


def test_retry_after_is_whole_seconds_and_enough() -> None:
    error = ApiError(429, "", retry_after_s=12.2)
    assert error.headers["retry-after"] == "13"


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
def test_wrong_limits_are_refused(value: object) -> None:
    with pytest.raises(BadRequestError, match="whole number"):
        KeyLimits(concurrent=value)  # type: ignore[arg-type]


@given(
    uses=st.lists(st.tuples(st.integers(0, 240), st.integers(1, 50)), max_size=40), most=st.integers(1, 200)
)
def test_after_the_wait_there_is_room_and_not_before(uses: list[tuple[int, int]], most: int) -> None:
    window, now = Window(MINUTE_S), 0.0
    for pause, amount in uses:
        now += pause / 8
        window.add(amount, now)
    wait = window.wait_s(most, now)
    assert 0 <= wait <= MINUTE_S
    if wait > 0:
        assert window.wait_s(most, now + wait * 0.999) > 0
    assert window.wait_s(most, now + wait) == pytest.approx(0, abs=1e-6)


def test_a_day_of_requests_takes_little_memory() -> None:
    window = Window(DAY_S)
    for second in range(50_000):
        window.add(1, float(second))
    assert window.total == 50_000
    assert len(window) < 4000
