"""How an agent is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowedge.agent.limits import AgentLimits
from flowedge.agent.operations.logs import LogSettings
from flowedge.agent.operations_settings import OperationsSettings
from flowedge.agent.pipeline_settings import PipelineSettings
from flowedge.discovery.settings import DiscoverySettings
from flowedge.net.link_settings import LinkSettings
from flowedge.security.settings import SecuritySettings
from flowedge.system.memory import MemorySettings
from flowedge.weights.settings import WeightsSettings

if TYPE_CHECKING:
    from flowedge.live.pacing import EmulatedDevice


@dataclass(frozen=True)
class AgentSettings:
    """One agent; times in seconds."""

    # Address to listen on; a wildcard for every network of the device. If not given, loopback until a cluster
    # is joined, then a wildcard.
    host: str | None = None
    port: int = 0  # 0 takes a free one
    name: str | None = None  # of the device; the host's name if not given
    advertise: bool = True  # make it known by zeroconf
    device_kind: str | None = None  # what it is; found out if not given
    threads: int = 1  # that a computation uses
    cache_dir: str | None = None  # for weights; see CacheLimits.configured for the default
    cache_gib: float | None = None  # that they may take on disk; 0 keeps none
    load_s: float = 600.0  # a role has to be loaded within this
    claim_s: float = 30.0  # a loaded stage that no draft node has come for may be given another role
    progress_s: float = 60.0  # a session without any message, result or output for so long is ended
    keep_alive_s: float = 1.0  # a client hears something at least this often
    stop_s: float = 2.0  # each step of the end has this long when the agent has drained
    # Asked at the taking of each role: what the device is to take for its work, when it emulates another.
    pacing: Callable[[], EmulatedDevice] | None = None
    operations: OperationsSettings = field(default_factory=OperationsSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    limits: AgentLimits = field(default_factory=AgentLimits)
    link: LinkSettings = field(default_factory=LinkSettings)
    weights: WeightsSettings = field(default_factory=WeightsSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    log: LogSettings = field(default_factory=LogSettings)
    config: str = ""  # file that settings were read from, for the log
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
