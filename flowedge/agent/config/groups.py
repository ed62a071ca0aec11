"""The groups of settings that only an agent has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flowedge.core.errors import CapacityError
from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by
from flowedge.net.address import checked_address, host_ip
from flowedge.net.link_settings import LinkDeadlines, MessageLimit

Port = Annotated[int, Field(ge=0, le=65535)]
Name = Annotated[str, Field(min_length=1, max_length=63)]
Positive = Annotated[int, Field(ge=1, le=1 << 31)]
Count = Annotated[int, Field(ge=0)]


class DeviceSettings(SettingsGroup):
    """The device itself."""

    host: Annotated[
        Annotated[str, checked_by(host_ip)] | None,
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
        Field(
            description='What the device is, such as "Jetson Orin Nano"; found out if not set.',
            examples=["Jetson Orin Nano"],
        ),
    ] = None
    advertise: Annotated[bool, Field(description="Make the agent known on its networks by zeroconf.")] = True
    threads: Annotated[
        int, Field(ge=1, le=1024, description="Processor threads that a computation uses.")
    ] = 1
    reflection: Annotated[
        bool, Field(description="Answer gRPC server reflection, for grpcurl and similar tools.")
    ] = False


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
        str, Field(description='Its drafter: a directory or hub id, "bundled", "ngram" or "none".')
    ] = "bundled"
    quant: Annotated[str, Field(description="Quantisation of the layers.")] = "none"
    stages: Annotated[
        tuple[Annotated[str, checked_by(checked_address)], ...],
        Field(
            description="Its stages, host:port in the order of the layers. Empty: idle agents that are found."
        ),
    ] = ()
    count: Annotated[Count, Field(description="How many stages to find; 0 takes all idle agents.")] = 0
    split: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(description="Layers of each stage; empty: as even as possible."),
    ] = ()
    look_s: Annotated[
        Seconds, Field(description="Seconds between two checks of whether the pipeline still stands.")
    ] = 5.0

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
        str,
        checked_by(host_ip),
        Field(description="Address to serve them on; whoever can connect to it may read them."),
    ] = "127.0.0.1"
    port: Annotated[
        Port, Field(description="Port to serve them on; 0 takes a free port and says so in the log.")
    ] = 0


class AgentLimits(MessageLimit):
    """How much the agent takes, from one peer and from all of them. Anything beyond is refused."""

    sessions: Annotated[Positive, Field(description="Sessions open at the same time.")] = 64
    segment_rows: Annotated[Positive, Field(description="Rows of a segment.")] = 4096
    queued_segments: Annotated[
        Positive, Field(description="Segments that wait for a stage's computation.")
    ] = 4096
    prompt_bytes: Annotated[Positive, Field(description="Bytes of a prompt as text.")] = 1 << 20
    prompt_tokens: Annotated[
        Positive, Field(description="Tokens of a prompt; the model's own limit is often lower.")
    ] = 1 << 17
    calls: Annotated[Positive, Field(description="Calls going on at the same time, streams included.")] = 512
    streams_per_peer: Annotated[
        Positive, Field(description="Streams that one address may hold open; they count as calls too.")
    ] = 64

    def check_prompt_text(self, prompt: str) -> None:
        """Check a prompt before it is turned into tokens.

        Raises:
            CapacityError: when the prompt has too many bytes.
        """
        size = len(prompt.encode())
        if size > self.prompt_bytes:
            raise CapacityError(
                f"the prompt has {size} bytes, at most {self.prompt_bytes} are taken; shorten it"
            )

    def check_prompt_tokens(self, number: int) -> None:
        """Check the number of tokens of a prompt.

        Raises:
            CapacityError: when there are too many.
        """
        if number > self.prompt_tokens:
            raise CapacityError(
                f"the prompt has {number} tokens, at most {self.prompt_tokens} are taken; shorten it"
            )


class DeadlineSettings(LinkDeadlines):
    """How long things may take, in seconds."""

    load_s: Annotated[Seconds, Field(description="A role has to be loaded within this.")] = 600.0
    claim_s: Annotated[
        Seconds,
        Field(
            description="A loaded stage that no draft node has used within this may be given another role."
        ),
    ] = 30.0
    progress_s: Annotated[
        Seconds, Field(description="A session without any message, result or output for this long is ended.")
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
    stop_s: Annotated[
        Seconds,
        Field(description="Each step of the end has this long after that: handing back, giving up the role."),
    ] = 2.0


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
