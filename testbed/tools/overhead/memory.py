"""The memory of an agent's process, idle and with a role."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.agent.local_cluster import LocalCluster
from flowedge.cli.options import BUNDLED
from flowedge.client import Client, Device
from flowedge.client.assembly import PipelineSpec, assemble


@dataclass(frozen=True)
class AgentMemory:
    """The memory of one agent, in bytes; `loaded_bytes` is its resident set after a generation."""

    role: str
    idle_bytes: int
    loaded_bytes: int
    weight_bytes: int
    cache_bytes: int


def measure_memory(stages: int) -> list[AgentMemory]:
    """Measure a draft node and stages of the bundled models, idle and while a session is open."""
    with LocalCluster(stages, name="overhead") as cluster:
        addresses = [agent.address for agent in cluster.agents]
        idle = [_describe(address) for address in addresses]
        assemble(
            PipelineSpec(
                draft_node=addresses[0], stages=tuple(addresses[1:]), model=BUNDLED, drafter=(BUNDLED,)
            ),
            lambda *_: None,
        )
        with Client(addresses[0]) as client:
            generation = client.generate("Tell me a story.", max_new_tokens=200)
            next(generation)
            loaded = [_describe(address) for address in addresses]
            generation.result()
    return [
        AgentMemory(
            after.role, before.resident_bytes, after.resident_bytes, after.weight_bytes, after.cache_bytes
        )
        for before, after in zip(idle, loaded, strict=True)
    ]


def _describe(address: str) -> Device:
    with Client(address) as client:
        return client.describe()
