"""Clock offsets from made-up exchanges."""

from __future__ import annotations

import random

import pytest

from flowedge.client.clock_offset import ClockOffset, Exchange


def test_the_shortest_round_trip_counts() -> None:
    exchanges = [
        Exchange(sent=10.0, received=10.8, device=110.1),
        Exchange(sent=11.0, received=11.2, device=111.1),
        Exchange(sent=12.0, received=12.4, device=112.4),
    ]
    found = ClockOffset.estimate(exchanges)
    assert found.offset == pytest.approx(100.0)
    assert found.uncertainty == pytest.approx(0.1)
    assert found.to_caller(111.1) == pytest.approx(11.1)


def test_the_true_offset_is_within_the_uncertainty() -> None:
    """However unequal the two ways are."""
    source = random.Random(5)
    for _ in range(500):
        offset, now, exchanges = source.uniform(-1e5, 1e5), 50.0, []
        for _ in range(8):
            there, back = source.expovariate(500), source.expovariate(500)
            exchanges.append(Exchange(now, now + there + back, now + there + offset))
            now += 0.1
        found = ClockOffset.estimate(exchanges)
        assert abs(found.offset - offset) <= found.uncertainty + 1e-9
        assert found.uncertainty == min(exchange.round_trip for exchange in exchanges) / 2


def test_without_an_exchange_there_is_no_offset() -> None:
    with pytest.raises(ValueError, match="no exchange"):
        ClockOffset.estimate([])
