"""What the devices of a lost pipeline answer, and which of them is said to be lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flowedge.agent.keeping import device_probes
from flowedge.agent.keeping.choice import RecentLosses
from flowedge.agent.keeping.device_probes import DeviceProbes
from flowedge.agent.roles.agent import Agent
from flowedge.core.errors import DeviceLostError
from flowedge.live.observer import UNOBSERVED
from flowedge.network.device_state import ConnectResult, DeviceState
from flowedge.network.link_settings import LinkSettings
from flowedge.v1 import agent_pb2 as pb

MET = {"10.0.0.1:7070": ("v1", "one"), "10.0.0.2:7070": ("v2", "two")}


def agent() -> Agent:
    """Return what the probes use of the agent of a draft node."""
    config = SimpleNamespace(link=LinkSettings())
    known = SimpleNamespace(
        name="d0", config=config, info=SimpleNamespace(id="d0"), observer=UNOBSERVED, loss=None, obstacle=""
    )
    return cast(Agent, known)


def still() -> DeviceLostError:
    lost = DeviceLostError("d0", "its pipeline stands still")
    lost.stands_still = True
    return lost


@pytest.mark.parametrize(
    ("computing", "device", "doubtful"),
    [
        ({"v1": 0.0, "v2": 57.0}, "v2", {"10.0.0.2:7070"}),
        ({"v1": 0.01, "v2": 0.02}, "d0", set()),  # each ends what it computes
    ],
)
def test_the_device_that_does_not_come_to_an_end_is_named(
    monkeypatch: pytest.MonkeyPatch, computing: dict[str, float], device: str, doubtful: set[str]
) -> None:
    async def describe(address: str, settings: Any) -> pb.Device:
        name, instance = MET[address]
        return pb.Device(id=name, name=name, instance=instance, computing_s=computing[name])

    async def connect(*_: object) -> ConnectResult:
        return ConnectResult.OPEN

    monkeypatch.setattr(device_probes, "describe", describe)
    monkeypatch.setattr(device_probes, "try_connect", connect)
    asking = agent()
    probes = DeviceProbes(asking, still(), MET, RecentLosses(120.0))
    assert asyncio.run(probes.ask(MET, list(MET))) == set(MET)
    assert probes.doubtful == doubtful
    assert asking.loss is not None
    assert (asking.loss.device, asking.loss.state) == (device, DeviceState.SLOW)
