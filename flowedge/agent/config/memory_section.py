"""The section of the configuration about memory."""

from __future__ import annotations

from pydantic import Field

from flowedge.agent.config.section import Section
from flowedge.system.memory import MemorySettings

_MEMORY = MemorySettings()


class MemorySection(Section):
    """What the agent may take of the device's memory. What does not fit is refused before it is loaded."""

    limit_gib: float | None = Field(
        default=_MEMORY.limit_gib,
        gt=0,
        description="GiB that the agent may hold; if not set, all that the device and its cgroup have.",
        examples=[6.0],
    )
    reserve_gib: float = Field(
        default=_MEMORY.reserve_gib,
        ge=0,
        description="GiB left free beside weights and caches, for activations and buffers.",
    )
    kv_tokens: int = Field(
        default=_MEMORY.kv_tokens,
        ge=1,
        description="Tokens of context whose KV cache has to fit beside the weights.",
    )

    def settings(self) -> MemorySettings:
        """What the agent is told of it."""
        return MemorySettings(self.limit_gib, self.reserve_gib, self.kv_tokens)
