"""The agent's configuration: a field here for each section of the file, and how the agent is told of it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from flowedge.agent.config.discovery_section import DiscoverySection
from flowedge.agent.config.log_section import LogSection
from flowedge.agent.config.memory_section import MemorySection
from flowedge.agent.config.pipeline_section import PipelineSection
from flowedge.agent.config.section import Section
from flowedge.agent.config.sections import (
    AgentSection,
    CacheSection,
    DeadlinesSection,
    LimitsSection,
    MetricsSection,
    SecuritySection,
    WeightsSection,
)
from flowedge.agent.limits import MIB, AgentLimits
from flowedge.agent.operations_settings import OperationsSettings
from flowedge.agent.settings import AgentSettings
from flowedge.net.link_settings import LinkSettings
from flowedge.security.settings import SecuritySettings
from flowedge.weights.settings import WeightsSettings


class AgentConfig(BaseModel):
    """All sections, as the file has them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent: AgentSection = Field(default_factory=AgentSection)
    security: SecuritySection = Field(default_factory=SecuritySection)
    cache: CacheSection = Field(default_factory=CacheSection)
    weights: WeightsSection = Field(default_factory=WeightsSection)
    memory: MemorySection = Field(default_factory=MemorySection)
    discovery: DiscoverySection = Field(default_factory=DiscoverySection)
    pipeline: PipelineSection = Field(default_factory=PipelineSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    deadlines: DeadlinesSection = Field(default_factory=DeadlinesSection)
    log: LogSection = Field(default_factory=LogSection)

    def settings(self) -> AgentSettings:
        """What the agent is run with."""
        agent, waits, metrics = self.agent, self.deadlines, self.metrics
        return AgentSettings(
            host=agent.host,
            port=agent.port,
            name=agent.name,
            advertise=agent.advertise,
            device_kind=agent.device_kind,
            threads=agent.threads,
            cache_dir=self.cache.dir,
            cache_gib=self.cache.gib,
            weights=WeightsSettings(**self.weights.model_dump()),
            load_s=waits.load_s,
            claim_s=waits.claim_s,
            progress_s=waits.progress_s,
            keep_alive_s=waits.keep_alive_s,
            stop_s=waits.stop_s,
            security=SecuritySettings(**self.security.model_dump()),
            operations=OperationsSettings(
                drain_s=waits.drain_s,
                metrics_host=metrics.host,
                metrics_port=metrics.port if metrics.enabled else None,
                reflection=agent.reflection,
            ),
            limits=AgentLimits(**self.limits.model_dump(exclude={"message_mib"})),
            discovery=self.discovery.settings(),
            pipeline=self.pipeline.settings(),
            link=LinkSettings(
                max_message_bytes=self.limits.message_mib * MIB,
                heartbeat_s=waits.heartbeat_s,
                silence_s=waits.silence_s,
                upstream_silence_s=waits.upstream_silence_s,
                connect_s=waits.connect_s,
                send_s=waits.send_s,
            ),
            memory=self.memory.settings(),
            log=self.log.settings(),
        )


def section_fields() -> dict[str, type[Section]]:
    """The sections by name, in the order of the file."""
    sections = {}
    for name, field in AgentConfig.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, Section), name
        sections[name] = field.annotation
    return sections
