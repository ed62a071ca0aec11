"""The agent's configuration: a field for each section of the file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from flowedge.agent.config.groups import (
    AgentLimits,
    DeadlineSettings,
    DeviceSettings,
    LogSettings,
    MetricsSettings,
    PipelineSettings,
)
from flowedge.core.settings_group import SettingsGroup
from flowedge.discovery.settings import DiscoverySettings
from flowedge.net.link_settings import LinkSettings
from flowedge.security.settings import SecuritySettings
from flowedge.storage.limits import CacheSettings
from flowedge.system.memory_room import MemorySettings
from flowedge.weights.settings import WeightsSettings


class AgentConfig(BaseModel):
    """What an agent is run with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent: DeviceSettings = DeviceSettings()
    security: SecuritySettings = SecuritySettings()
    cache: CacheSettings = CacheSettings()
    weights: WeightsSettings = WeightsSettings()
    memory: MemorySettings = MemorySettings()
    discovery: DiscoverySettings = DiscoverySettings()
    pipeline: PipelineSettings = PipelineSettings()
    metrics: MetricsSettings = MetricsSettings()
    limits: AgentLimits = AgentLimits()
    deadlines: DeadlineSettings = DeadlineSettings()
    log: LogSettings = LogSettings()

    @property
    def link(self) -> LinkSettings:
        """The settings of links, which the file has in the sections limits and deadlines."""
        values = self.limits.model_dump() | self.deadlines.model_dump()
        return LinkSettings(**{key: values[key] for key in LinkSettings.model_fields})


SECTIONS: dict[str, type[SettingsGroup]] = {
    name: type(field.default) for name, field in AgentConfig.model_fields.items()
}
"""The model of each section, in the order of the file."""
