"""The rows that drafter and stages have room for bound what a draft node admits."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from flowedge.agent.agent_config import AgentConfig
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.device.compute import find_compute
from flowedge.device.memory import AvailableMemory, MemorySettings
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.engine.draft_node.cache_budget import UNLIMITED_ROWS
from flowedge.v1 import agent_pb2 as pb
from tests.support.seams import give_ready_stages


@dataclass
class Models:
    """The part of a draft node's models that memory is planned by."""

    drafter: NGramDrafter
    caches_on_demand: bool = True

    def drafter_bytes(self, rows: int) -> int:
        return self.drafter.session_bytes(rows)


def test_what_is_admitted_is_what_drafter_and_stages_have_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    info = SimpleNamespace(compute=find_compute("cpu"))
    agent: Any = SimpleNamespace(name="kitchen", config=AgentConfig(), compute=None, left=None, info=info)
    role = DraftNodeRole(agent, pb.DraftNodeRole(config=PipelineConfig(dtype="float32").to_json()))
    models: Any = Models(NGramDrafter())
    free = models.drafter_bytes(1000)
    room = AvailableMemory(3 * free, free + MemorySettings().reserve_bytes, "the device's memory")
    monkeypatch.setattr("flowedge.agent.roles.draft_node_role.read_memory_of", lambda device, settings: room)
    limits = role.limits(models)
    assert 990 <= limits.drafter_rows <= 1000  # the fixed part of a session's memory is counted by the row
    assert (limits.total_rows, limits.session_rows) == (UNLIMITED_ROWS, UNLIMITED_ROWS)
    assert (limits.sessions, limits.queue_length, limits.queue_s) == (64, 128, 120.0)
    assert limits.on_demand
    first = pb.StageRoom(total_rows=900, session_rows=400, sessions=8, on_demand=True)
    give_ready_stages(role, first, pb.StageRoom(on_demand=True))
    assert role.limits(models).on_demand
    give_ready_stages(role, pb.StageRoom(total_rows=800, session_rows=500, sessions=100))
    limits = role.limits(models)
    assert (limits.total_rows, limits.session_rows, limits.sessions) == (800, 400, 8)
    assert not limits.on_demand, "of the last stage, which takes memory at once"
