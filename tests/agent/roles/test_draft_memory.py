"""A request for which the drafter's cache has no room is refused before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from flowedge.agent.config.agent_config import AgentConfig
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.core.errors import CapacityError
from flowedge.drafting.ngram import NGramDrafter
from flowedge.system.compute import find_compute
from flowedge.system.memory import AvailableMemory, MemorySettings
from flowedge.v1 import agent_pb2 as pb
from tests.support.seams import give_models


@dataclass
class Models:
    """The part of a draft node's models that memory is planned by."""

    drafter: NGramDrafter

    def drafter_bytes(self, rows: int) -> int:
        return self.drafter.session_bytes(rows)


def test_the_drafters_cache_has_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    info = SimpleNamespace(compute=find_compute("cpu"))
    agent: Any = SimpleNamespace(name="kitchen", config=AgentConfig(), compute=None, info=info)
    role = DraftNodeRole(agent, pb.DraftNodeRole())
    models: Any = Models(NGramDrafter())
    give_models(role, models)
    free = models.drafter_bytes(1000) + MemorySettings().reserve_bytes
    room = AvailableMemory(2 * free, free, "the device's memory")
    monkeypatch.setattr("flowedge.agent.roles.draft_node_role.read_memory_of", lambda device, settings: room)
    role.check_memory(1000)
    with pytest.raises(CapacityError, match=r"1001 rows .* drafter's cache on device kitchen"):
        role.check_memory(1001)
