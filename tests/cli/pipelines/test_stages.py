"""Which agents hold the layers for a command that is the draft node itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowedge.cli.pipelines.stages import StagesRequest, open_stages
from flowedge.core.errors import FlowEdgeError
from tests.cli.pipelines.test_pipelines import IDLE, network


def stages(request: StagesRequest) -> list[str]:
    with open_stages(request, lambda device, message: None) as addresses:
        return addresses


def test_every_idle_agent_holds_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "127.0.0.1:2", "10.0.0.3:1", "10.0.0.4:1")
    found.devices["10.0.0.3:1"] = replace(IDLE, name="kitchen", role="stage")
    assert stages(StagesRequest(discovered=True)) == ["10.0.0.1:1", "10.0.0.4:1"]
    assert stages(StagesRequest(discovered=True, split=(8,))) == ["10.0.0.1:1"]
    with pytest.raises(
        FlowEdgeError, match=r"3 idle agents are needed and 2 found, besides kitchen \(stage\)"
    ):
        stages(StagesRequest(discovered=True, split=(2, 3, 3)))


def test_agents_on_loopback_are_used_where_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    network(monkeypatch, "127.0.0.1:2", "127.0.0.1:3")
    assert stages(StagesRequest(discovered=True)) == ["127.0.0.1:2", "127.0.0.1:3"]
    assert stages(StagesRequest(peers=("10.0.0.9:1",))) == ["10.0.0.9:1"]
