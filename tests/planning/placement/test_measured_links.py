"""Links that were measured in pairs: who measures at the same time, and which ones are unusual."""

from __future__ import annotations

import asyncio
from itertools import combinations

import pytest

from flowedge.core.errors import DeviceLostError, FlowEdgeError
from flowedge.planning.placement.measured_links import in_rounds, measured_links, usual_link, words
from flowedge.planning.profile import shipped
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.measurement import LinkMeasurement

SEGMENT = 16 * 4096 * 2
NAMES = {"a": "attic", "b": "bench", "c": "cellar"}


def link(mbps: float, latency_ms: float) -> LinkProfile:
    return LinkProfile(title="link", source="test", mbps=mbps, latency_ms=latency_ms)


@pytest.mark.parametrize("devices", [2, 3, 4, 7, 8])
def test_a_device_measures_one_link_at_a_time(devices: int) -> None:
    pairs = [*combinations(map(str, range(devices)), 2)]
    rounds = in_rounds(pairs)
    assert sorted(pair for at_once in rounds for pair in at_once) == sorted(pairs)
    for at_once in rounds:
        ends = [name for pair in at_once for name in pair]
        assert len(ends) == len(set(ends))


def test_a_link_that_cannot_be_measured_is_told_and_left_out() -> None:
    told = []

    async def measure(sender: str, receiver: str) -> LinkMeasurement:
        if receiver == "c":
            raise DeviceLostError("c", "it is silent")
        return LinkMeasurement(bytes=1_250_000, seconds=0.1, round_trips=(0.001, 0.002, 0.004))

    async def tell(sender: str, receiver: str, error: FlowEdgeError) -> None:
        told.append((sender, receiver, str(error)))

    found = asyncio.run(measured_links(combinations("abc", 2), measure, tell))
    (only,) = found
    assert only == frozenset("ab")
    assert (found[only].mbps, found[only].latency_ms) == (100.0, 1.0)
    assert [(sender, receiver) for sender, receiver, _ in told] == [("a", "c"), ("b", "c")]


def test_links_that_scatter_are_alike() -> None:
    pairs = [frozenset(pair) for pair in combinations("abc", 2)]
    scattered = dict(zip(pairs, [link(940, 0.2), link(1000, 0.3), link(900, 0.25)], strict=True))
    usual, unusual = usual_link(scattered, SEGMENT)
    assert (usual.mbps, usual.latency_ms) == (940, 0.25)
    assert not unusual
    assert words(usual, unusual, NAMES) == "links have 940 Mbit/s and 0.25 ms"


@pytest.mark.parametrize("slow", [link(30, 0.3), link(940, 20.0)])
def test_a_slow_link_is_unusual(slow: LinkProfile) -> None:
    pairs = [frozenset(pair) for pair in combinations("abc", 2)]
    usual, unusual = usual_link(
        dict(zip(pairs, [link(940, 0.3), link(940, 0.3), slow], strict=True)), SEGMENT
    )
    assert unusual == {frozenset("bc"): slow}
    assert "; bench and cellar " in words(usual, unusual, NAMES)


def test_without_a_measurement_links_are_gigabit() -> None:
    assert usual_link({}, SEGMENT) == (shipped.link("gigabit"), {})
