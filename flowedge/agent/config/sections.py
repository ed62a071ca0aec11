"""The sections of the agent's configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from flowedge.agent.config.section import Section, checked_by
from flowedge.agent.limits import MIB, AgentLimits
from flowedge.agent.operations_settings import MAX_DRAIN_S, OperationsSettings
from flowedge.agent.settings import AgentSettings
from flowedge.net.address import host_ip, split_address
from flowedge.net.link_settings import LinkSettings
from flowedge.security.settings import SecuritySettings
from flowedge.weights.settings import WeightsSettings

_AGENT = AgentSettings()
_LINK = LinkSettings()
_SECURITY = SecuritySettings()
_WEIGHTS = WeightsSettings()
_OPERATIONS = OperationsSettings()
_LIMITS = AgentLimits()


def _address(text: str) -> str:
    split_address(text)
    return text


Seconds = Annotated[float, Field(gt=0)]
Positive = Annotated[int, Field(ge=1, le=1 << 31)]


class AgentSection(Section):
    """The device itself."""

    host: Annotated[str, checked_by(host_ip)] | None = Field(
        default=_AGENT.host,
        description="Address to listen on, one of the device's own; 0.0.0.0 for all its networks. "
        "If not set, 127.0.0.1 until the device joins a cluster, then 0.0.0.0.",
        examples=["192.168.1.20"],
    )
    port: int = Field(
        default=_AGENT.port, ge=0, le=65535, description="Port to listen on; 0 takes a free one."
    )
    name: str | None = Field(
        default=_AGENT.name,
        min_length=1,
        max_length=63,
        description="Name of the device; the host's name if not set.",
        examples=["kitchen"],
    )
    device_kind: str | None = Field(
        default=_AGENT.device_kind,
        min_length=1,
        max_length=63,
        description='What the device is, such as "Jetson Orin Nano"; found out if not set.',
        examples=["Jetson Orin Nano"],
    )
    advertise: bool = Field(
        default=_AGENT.advertise, description="Make the agent known on its networks by zeroconf."
    )
    threads: int = Field(
        default=_AGENT.threads, ge=1, le=1024, description="Processor threads that a computation uses."
    )
    reflection: bool = Field(
        default=_OPERATIONS.reflection, description="Answer gRPC server reflection, for grpcurl and its like."
    )


class CacheSection(Section):
    """Weights on disk: those that were fetched, and those that were quantised here."""

    dir: str | None = Field(
        default=_AGENT.cache_dir,
        min_length=1,
        description="Directory to keep weights in; ~/.cache/flowedge if not set.",
        examples=["/var/cache/flowedge"],
    )
    gib: float | None = Field(
        default=_AGENT.cache_gib,
        ge=0,
        description="GiB they may take there, 16 if not set; 0 keeps none.",
        examples=[16.0],
    )


class SecuritySection(Section):
    """How the device proves who it is, and asks it of others."""

    cluster_dir: str | None = Field(
        default=_SECURITY.cluster_dir,
        min_length=1,
        description="Directory that flowedge join wrote to; the state directory if not set.",
        examples=["/var/lib/flowedge"],
    )
    insecure: bool = Field(
        default=_SECURITY.insecure,
        description="Plaintext on every network, to and from anyone; the log says so at every start.",
    )
    refresh_s: Seconds = Field(
        default=_SECURITY.refresh_s,
        description="Seconds between looks at the revocation list and at whether to renew the certificate.",
    )


class WeightsSection(Section):
    """Where weights come from, in this order: the cache, a directory, other devices, the hub."""

    directories: bool = Field(
        default=_WEIGHTS.directories, description="Use the directory of a model where this device has it."
    )
    hub: bool = Field(
        default=_WEIGHTS.hub, description="Ask the hub for what is neither here nor on other devices."
    )
    peers: tuple[Annotated[str, checked_by(_address)], ...] = Field(
        default=_WEIGHTS.peers,
        description="Agents (host:port) to ask for weights beside those of the pipeline.",
    )
    streams: int = Field(
        default=_WEIGHTS.streams, ge=1, le=32, description="Tensors that are received at once."
    )
    max_sending: int = Field(
        default=_WEIGHTS.max_sending, ge=1, le=256, description="Tensors that are sent at once."
    )
    stall_s: Seconds = Field(
        default=_WEIGHTS.stall_s,
        description="A device that sends nothing of a tensor for so many seconds is left for another.",
    )
    give_up_s: Seconds = Field(
        default=_WEIGHTS.give_up_s,
        description="Fetching ends when no device brings anything for so many seconds.",
    )


class MetricsSection(Section):
    """Prometheus metrics."""

    enabled: bool = Field(default=True, description="Serve metrics over HTTP, at /metrics.")
    host: Annotated[str, checked_by(host_ip)] = Field(
        default=_OPERATIONS.metrics_host,
        description="Address to serve them on; whoever reaches it may read them.",
    )
    port: int = Field(
        default=_OPERATIONS.metrics_port or 0,
        ge=0,
        le=65535,
        description="Port to serve them on; 0 takes a free one and says so in the log.",
    )


class LimitsSection(Section):
    """How much is taken, from one peer and from all of them."""

    message_mib: int = Field(
        default=_LINK.max_message_bytes // MIB,
        ge=1,
        le=1024,
        description="MiB of one message; a segment of many rows of a large model takes several.",
    )
    sessions: Positive = Field(default=_LIMITS.sessions, description="Sessions open at once.")
    segment_rows: Positive = Field(default=_LIMITS.segment_rows, description="Rows of one segment.")
    queued_segments: Positive = Field(
        default=_LIMITS.queued_segments, description="Segments that wait for a stage's computation."
    )
    prompt_bytes: Positive = Field(default=_LIMITS.prompt_bytes, description="Bytes of a prompt as text.")
    prompt_tokens: Positive = Field(
        default=_LIMITS.prompt_tokens,
        description="Tokens of a prompt; what the model takes is a limit of its own.",
    )
    calls: Positive = Field(default=_LIMITS.calls, description="Calls going on at once, streams included.")
    streams_per_peer: Positive = Field(
        default=_LIMITS.streams_per_peer, description="Of those, streams that one address may hold open."
    )


class DeadlinesSection(Section):
    """How long things may take, in seconds."""

    load_s: Seconds = Field(default=_AGENT.load_s, description="A role has to be loaded within this.")
    claim_s: Seconds = Field(
        default=_AGENT.claim_s,
        description="A loaded stage that no draft node has come for within this may be given another role.",
    )
    progress_s: Seconds = Field(
        default=_AGENT.progress_s,
        description="A session without any message, result or output for so long is ended.",
    )
    keep_alive_s: Seconds = Field(
        default=_AGENT.keep_alive_s, description="A client hears something at least this often."
    )
    drain_s: float = Field(
        default=_OPERATIONS.drain_s,
        ge=0,
        le=MAX_DRAIN_S,
        description="Sessions have this long to end when the agent is told to stop; systemd's TimeoutStopSec "
        "has to be 10 s longer.",
    )
    stop_s: Seconds = Field(
        default=_AGENT.stop_s,
        description="Each step of the end has this long after that: handing back, giving up the role.",
    )
    heartbeat_s: Seconds = Field(
        default=_LINK.heartbeat_s, description="Links carry a sign of life this often."
    )
    silence_s: Seconds = Field(
        default=_LINK.silence_s, description="A peer that has not been heard for so long is lost."
    )
    upstream_silence_s: Seconds = Field(
        default=_LINK.upstream_silence_s,
        description="The same for the sender of segments, which a slow network may keep busy.",
    )
    connect_s: Seconds = Field(
        default=_LINK.connect_s, description="A peer has to answer a new stream within this."
    )
    send_s: Seconds = Field(
        default=_LINK.send_s, description="A peer has to take a single message within this."
    )

    @model_validator(mode="after")
    def _heard_before_lost(self) -> DeadlinesSection:
        for name in ("silence_s", "upstream_silence_s"):
            if getattr(self, name) <= self.heartbeat_s:
                raise ValueError(f"{name} has to be longer than heartbeat_s, or every peer would be lost")
        return self
