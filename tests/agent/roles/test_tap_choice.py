"""Stages keep what they tap where a round trip is shorter than what it would take on the links."""

from __future__ import annotations

import asyncio

import pytest

from flowedge.agent.holding.stage_content import LayerSlice
from flowedge.agent.roles import tap_choice
from flowedge.agent.roles.coordinator import PlannedRoute, PlannedStage
from flowedge.agent.roles.tap_choice import choose_retained_taps
from flowedge.core.errors import DeviceLostError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.network.link_settings import LinkSettings
from tests.support.processes import AgentProcess
from tests.support.stage_config import stage_config

TAPS = (2, 4, 5)  # of the bundled model


def route(addresses: list[str]) -> PlannedRoute:
    bounds = [(0, 3), (3, 6), (6, 8)]
    stages = [
        PlannedStage(address, LayerSlice(stage_config(), *layers), 0, address, 0)
        for address, layers in zip(addresses, bounds, strict=True)
    ]
    return PlannedRoute(0, Checkpoint.open("bundled"), tuple(stages))


def choose(addresses: list[str], *, value_bytes: int = 2, draws: bool = False) -> tuple[tuple[int, int], ...]:
    return asyncio.run(
        choose_retained_taps(
            route(addresses), TAPS, value_bytes, LinkSettings(connect_s=5.0), {}, draws=draws
        )
    )


@pytest.mark.parametrize(("seconds", "keeps"), [(1e-6, True), (1.0, False)])
@pytest.mark.parametrize("draws", [False, True])
def test_the_slowest_round_trip_decides(
    monkeypatch: pytest.MonkeyPatch, seconds: float, keeps: bool, draws: bool
) -> None:
    async def measured(address: str, *_: object) -> float:
        return seconds if address == "b:1" else 1e-7

    monkeypatch.setattr(tap_choice, "round_trip_s", measured)
    hidden = Checkpoint.open("bundled").config.hidden_size
    expected = ((hidden, 2 * hidden), (2 * hidden, 4 * hidden)) if keeps else ()
    assert choose(["a:1", "b:1", "c:1"], draws=draws) == expected


@pytest.mark.proof
def test_agents_are_asked(idle_agents: list[AgentProcess]) -> None:
    addresses = [agent.address for agent in idle_agents[:3]]
    assert choose(addresses, value_bytes=1 << 30), "of such large values, seconds would cross the links"
    with pytest.raises(DeviceLostError):
        choose(["127.0.0.1:1", *addresses[1:]])
    assert choose([*addresses[:2], "127.0.0.1:1"], value_bytes=1 << 30), "the last stage taps nothing"
