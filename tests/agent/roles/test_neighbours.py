"""Which other agents are asked for weights."""

from __future__ import annotations

import asyncio
import dataclasses

from flowedge.agent.agent_config import AgentConfig, DeviceSettings
from flowedge.agent.roles.weight_sharing import find_neighbours, usable
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.settings import DiscoverySettings
from flowedge.version import PROTOCOL_VERSION, VERSION


def record(name: str, address: str, protocol: int = PROTOCOL_VERSION) -> AdvertisedDevice:
    return AdvertisedDevice(name, name, address, "kind", 1, protocol, VERSION)


def test_own_loopback_and_other_versions_are_left_out() -> None:
    records = [
        record("d0", "10.0.0.1:1"),
        record("v1", "10.0.0.2:1"),
        record("old", "10.0.0.3:1", PROTOCOL_VERSION + 1),
        record("local", "127.0.0.1:1"),
    ]
    assert usable(records, "d0", ["10.0.0.9:1"]) == ["10.0.0.2:1"]
    assert usable(records, "d0", ["127.0.0.1:2"]) == ["127.0.0.1:1"]


def test_agents_of_other_clusters_do_not_displace_neighbours() -> None:
    fakes = [dataclasses.replace(record(f"a{n}", "10.0.0.7:1"), cluster="0" * 16) for n in range(100)]
    assert usable([*fakes, record("v1", "10.0.0.2:1")], "d0", ["10.0.0.9:1"]) == ["10.0.0.2:1"]


def test_those_of_the_configuration_are_asked_without_multicast() -> None:
    discovery = DiscoverySettings(peers=("a:1", "b:1", "a:1"))
    config = AgentConfig(agent=DeviceSettings(advertise=False), discovery=discovery)
    assert asyncio.run(find_neighbours("d0", ["b:1"], config)) == ["a:1"]
