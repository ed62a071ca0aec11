"""The groups of settings that only an agent has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flowedge.core.errors import CapacityError
from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by
from flowedge.net.address import checked_address, host_ip
from flowedge.net.link_settings import LinkDeadlines, MessageLimit

Host = Annotated[str, checked_by(host_ip)]
Port = Annotated[int, Field(ge=0, le=65535)]
Name = Annotated[str, Field(min_length=1, max_length=63)]
Limit = Annotated[int, Field(ge=1, le=1 << 31)]


class DeviceSettings(SettingsGroup):
    """The device itself."""

    host: Annotated[
        Host | None,
        Field(
            description="Address to listen on, one of the device's own; 0.0.0.0 for all its networks. "
            "If not set, 127.0.0.1 until the device joins a cluster, then 0.0.0.0.",
            examples=["192.168.1.20"],
        ),
    ] = None
    port: Annotated[Port, Field(description="Port to listen on; 0 takes a free port.")] = 0
    name: Annotated[
        Name | None,
        Field(description="Name of the device; the host's name if not set.", examples=["kitchen"]),
    ] = None
    device_kind: Annotated[
        Name | None,
        Field(description="What the device is; found out if not set.", examples=["Jetson Orin Nano"]),
    ] = None
    advertise: Annotated[bool, Field(description="Make the agent known on its networks by zeroconf.")] = True
    threads: Annotated[int, Field(ge=1, le=1024, description="Processor threads of a computation.")] = 1
    reflection: Annotated[bool, Field(description="Answer gRPC server reflection, say of grpcurl.")] = False


class PipelineSettings(SettingsGroup):
    """The pipeline that the agent keeps up by itself, as its draft node; none without a model."""

    model: Annotated[
        str,
        Field(
            description="Keep a pipeline of this model up, with this device as its draft node: a directory "
            'or hub id that all its devices can read, or "bundled". Empty: none, until someone asks for one.'
        ),
    ] = ""
    drafter: Annotated[
        str,
        Field(description='Drafter of the pipeline: a directory or hub id, "bundled", "ngram" or "none".'),
    ] = "bundled"
    quant: Annotated[str, Field(description="Quantisation of the layers.")] = "none"
    stages: Annotated[
        tuple[Annotated[str, checked_by(checked_address)], ...],
        Field(description="Stages, host:port in the order of the layers; empty: idle agents that are found."),
    ] = ()
    count: Annotated[int, Field(ge=0, description="Stages to find; 0 takes all idle agents.")] = 0
    split: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(description="Layers of each stage; empty: as even as possible."),
    ] = ()
    look_s: Annotated[Seconds, Field(description="Seconds between two checks of the pipeline.")] = 5.0

    @model_validator(mode="after")
    def _stages_are_clear(self) -> PipelineSettings:
        if self.stages and self.count:
            raise ValueError("give either the stages of the pipeline or their count")
        wanted = self.stages_wanted
        if self.split and len(self.split) != wanted:
            raise ValueError(
                f"split has {len(self.split)} stages, but {wanted or 'any number'} are asked for"
            )
        return self

    @property
    def stages_wanted(self) -> int:
        """How many stages the pipeline must have; 0 for any number."""
        return len(self.stages) or self.count


class MetricsSettings(SettingsGroup):
    """Prometheus metrics."""

    enabled: Annotated[bool, Field(description="Serve metrics over HTTP, at /metrics.")] = True
    host: Annotated[
        Host, Field(description="Address of the metrics; whoever can connect to it may read them.")
    ] = "127.0.0.1"
    port: Annotated[Port, Field(description="Port of the metrics; 0 takes a free port, see the log.")] = 0


class AgentLimits(MessageLimit):
    """How much the agent takes, from one peer and from all of them. Anything beyond is refused."""

    sessions: Annotated[Limit, Field(description="Sessions open at the same time.")] = 64
    segment_rows: Annotated[Limit, Field(description="Rows of a segment.")] = 4096
    queued_segments: Annotated[Limit, Field(description="Segments that wait for a stage.")] = 4096
    prompt_bytes: Annotated[Limit, Field(description="Bytes of a prompt as text.")] = 1 << 20
    prompt_tokens: Annotated[
        Limit, Field(description="Tokens of a prompt; the model's own limit is often lower.")
    ] = 1 << 17
    calls: Annotated[Limit, Field(description="Calls at the same time, streams included.")] = 512
    streams_per_peer: Annotated[Limit, Field(description="Streams that one address may hold open.")] = 64

    def check_prompt_text(self, prompt: str) -> None:
        """Raise CapacityError for a prompt of too many bytes, before it is turned into tokens."""
        size = len(prompt.encode())
        if size > self.prompt_bytes:
            raise CapacityError(
                f"the prompt has {size} bytes, at most {self.prompt_bytes} are taken; shorten it"
            )

    def check_prompt_tokens(self, number: int) -> None:
        """Raise CapacityError for a prompt of too many tokens."""
        if number > self.prompt_tokens:
            raise CapacityError(
                f"the prompt has {number} tokens, at most {self.prompt_tokens} are taken; shorten it"
            )


class DeadlineSettings(LinkDeadlines):
    """How long things may take, in seconds."""

    load_s: Annotated[Seconds, Field(description="A role has to be loaded within this.")] = 600.0
    claim_s: Annotated[
        Seconds, Field(description="A stage that no draft node uses within this may get another role.")
    ] = 30.0
    progress_s: Annotated[
        Seconds, Field(description="A session without message, result or output for this long is ended.")
    ] = 60.0
    keep_alive_s: Annotated[Seconds, Field(description="A client hears something at least this often.")] = 1.0
    drain_s: Annotated[
        float,
        Field(
            ge=0,
            le=3600,
            description="Sessions have this long to end when the agent is told to stop; "
            "systemd's TimeoutStopSec has to be 10 s longer.",
        ),
    ] = 20.0
    stop_s: Annotated[Seconds, Field(description="After drain_s, each step of the end has this long.")] = 2.0


class LogSettings(SettingsGroup):
    """The log, which goes to stderr."""

    format: Annotated[
        Literal["text", "json"],
        Field(description='"text", or "json" for an object a line; see docs/agent.md.'),
    ] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(description='The lowest level that is logged: "debug", "info", "warning", "error".'),
    ] = "info"
