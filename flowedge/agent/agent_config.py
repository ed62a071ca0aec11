"""The configuration of an agent: the groups that only an agent has, and all sections of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flowedge.cluster.settings import SecuritySettings
from flowedge.cluster.tls.call_limits import GENERATE, CallDeadlines, CallLimits, MethodRule, rules_for
from flowedge.core.errors import ContextLengthError
from flowedge.core.pipeline_config import DrafterSetting, PathText, PipelineConfig
from flowedge.core.plain_text import counted
from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by, setting
from flowedge.device.compute import CPU, checked_device, default_threads
from flowedge.device.disk_cache.limits import CacheSettings
from flowedge.device.memory import MemorySettings
from flowedge.discovery.settings import DiscoverySettings
from flowedge.network.address import checked_address, host_ip
from flowedge.network.link_settings import LinkDeadlines, LinkSettings, MessageLimit
from flowedge.weights.settings import WeightsSettings

Host = Annotated[str, checked_by(host_ip)]
Port = Annotated[int, Field(ge=0, le=65535)]
ComputeSetting = Annotated[str, checked_by(checked_device)]
Name = Annotated[str, Field(min_length=1, max_length=63)]
Limit = Annotated[int, Field(ge=1, le=1 << 31)]
_MAX_RECEIVED = "grpc.max_receive_message_length"


class DeviceSettings(SettingsGroup):
    """The device itself."""

    host: Host | None = setting(
        None,
        "Address to listen on, one of the device's own; 0.0.0.0 for all its networks. Default: 127.0.0.1 "
        "until the device joins a cluster, then 0.0.0.0.",
        examples=["192.168.1.20"],
    )
    port: Port = setting(0, "Port to listen on; 0 chooses a free port.")
    links_port: Port = setting(
        0,
        "Second port, for the data of pipelines; 0 chooses a free port. Firewalls must let both in.",
    )
    name: Name | None = setting(None, "Name of the device. Default: the host name.", examples=["kitchen"])
    device_kind: Name | None = setting(
        None, "What the device is. Default: detected.", examples=["Jetson Orin Nano"]
    )
    advertise: bool = setting(True, "Announce the agent on its networks by zeroconf.")
    device: ComputeSetting = setting(
        "auto",
        "What to compute on: cpu, cuda, cuda:N or auto, which uses the GPU if a trial computation works.",
    )
    cuda_graphs: bool = setting(
        True,
        "Record decoding forwards as CUDA graphs where the GPU supports it; the log says if it does not.",
    )
    threads: int | None = setting(
        None,
        "Processor threads for a computation. Default: the physical cores less one; of mixed cores, the "
        "fast ones.",
        ge=1,
        le=1024,
        examples=[3],
    )
    reflection: bool = setting(False, "Offer gRPC server reflection, for grpcurl and similar tools.")

    @property
    def torch_threads(self) -> int:
        return self.threads or default_threads()

    def records_on(self, device: str) -> bool:
        """Return whether forwards on torch's device of this name are recorded, where a model allows it."""
        return self.cuda_graphs and device != CPU


class PipelineSettings(PipelineConfig):
    """The pipeline that the agent keeps up by itself, as its draft node; none without a model."""

    model: PathText = setting(
        "",
        "Keep a pipeline of this model running, with this device as its draft node: a directory, GGUF file "
        'or hub id that all its devices can read, or "bundled". Empty: no pipeline until one is requested.',
    )
    drafter: DrafterSetting | None = setting(
        "bundled",
        'Drafter of the pipeline: a directory or hub id, "bundled", "mtp", "ngram" or "none". A list '
        'combines several drafters: ["bundled", "ngram"].',
    )
    stages: tuple[Annotated[str, checked_by(checked_address)], ...] = setting(
        (), "Addresses of the stages, host:port, in layer order. Empty: the idle agents that are found."
    )
    spares: tuple[Annotated[str, checked_by(checked_address)], ...] = setting(
        (), "Addresses of agents that take the place of a stage that is lost, the first choice first."
    )
    standby: Annotated[str, checked_by(checked_address)] | None = setting(
        None,
        "Address of an agent that leads the pipeline when this device is lost; it may be a stage. It needs "
        "the same model and drafter. Default: none.",
        examples=["192.168.1.21:7070"],
    )
    count: int = setting(0, "Number of stages to find; 0 uses all idle agents.", ge=0)
    look_s: Seconds = setting(5.0, "Seconds between checks that the pipeline is complete.")

    @model_validator(mode="after")
    def _stages_are_clear(self) -> PipelineSettings:
        if self.stages and self.count:
            raise ValueError("set either pipeline.stages or pipeline.count, not both")
        if self.spares and not self.stages:
            raise ValueError(
                "pipeline.spares go with pipeline.stages; without them each idle agent is a spare"
            )
        if both := sorted(set(self.spares) & set(self.stages)):
            raise ValueError(f"{', '.join(both)}: either a stage or a spare of the pipeline, not both")
        wanted = self.stages_required
        if self.split and len(self.split) != wanted:
            asked = counted(wanted, "stage") if wanted else "no number of stages"
            raise ValueError(f"split is for {counted(len(self.split), 'stage')}, but {asked} is configured")
        return self

    @property
    def stages_required(self) -> int:
        """How many stages the pipeline must have; 0 for any number."""
        return len(self.stages) or self.count


class MetricsSettings(SettingsGroup):
    """Prometheus metrics."""

    enabled: bool = setting(True, "Serve metrics over HTTP, at /metrics.")
    host: Host = setting(
        "127.0.0.1", "Address to serve metrics at; anyone who can connect to it may read them."
    )
    port: Port = setting(0, "Port of the metrics; 0 chooses a free port, which the log names.")


def _check_length(found: int, most: int, unit: str) -> None:
    if found > most:
        raise ContextLengthError(f"the prompt has {found} {unit}, the maximum is {most}; shorten it")


class AgentLimits(MessageLimit, CallLimits):
    """How much the agent accepts, from one peer and from all of them. Anything beyond is refused."""

    sessions: Limit = setting(64, "Maximum number of open sessions.")
    queued_requests: int = setting(
        128,
        "Maximum number of requests that wait at a draft node for sessions and caches; 0: none waits.",
        ge=0,
        le=1 << 20,
    )
    segment_rows: Limit = setting(4096, "Maximum number of rows in a segment.")
    kept_rows: int = setting(
        8192,
        "Maximum number of cache rows, on each stage, that a draft node has kept of ended requests, so that "
        "prompts which begin alike are not computed again; 0 keeps none.",
        ge=0,
        le=1 << 30,
    )
    queued_segments: Limit = setting(4096, "Maximum number of segments waiting for a stage's computation.")
    prompt_bytes: Limit = setting(
        1 << 18,
        "Maximum bytes of a prompt as text; tokenizing takes several hundred times as much memory.",
    )
    prompt_tokens: Limit = setting(
        1 << 17, "Maximum tokens of a prompt; the model's own limit is often lower."
    )
    encodings: Limit = setting(2, "Maximum number of prompts tokenized at the same time; others wait.")

    def check_prompt_text(self, prompt: str) -> None:
        """Raise ContextLengthError for a prompt of too many bytes, before it is turned into tokens."""
        _check_length(len(prompt.encode()), self.prompt_bytes, "bytes")

    def check_prompt_tokens(self, number: int) -> None:
        """Raise ContextLengthError for a prompt of too many tokens."""
        _check_length(number, self.prompt_tokens, "tokens")


class DeadlineSettings(LinkDeadlines, CallDeadlines):
    """Time limits, in seconds."""

    load_s: Seconds = setting(600.0, "Time to load a role.")
    claim_s: Seconds = setting(
        30.0, "A stage that no draft node has used for this long may be given another role."
    )
    queue_s: Seconds = setting(
        120.0,
        "Time that a request waits at a draft node for sessions and caches; after each quarter of it the "
        "request moves up by one priority.",
    )
    progress_s: Seconds = setting(
        60.0, "A session without any message, result or output for this long is ended."
    )
    keep_alive_s: Seconds = setting(1.0, "Longest time between two messages to a client.")
    flapping_s: float = setting(
        120.0,
        "A stage that is lost three times within this time is left out for a growing time, if the pipeline "
        "works without it; 0: never.",
        ge=0,
        le=3600,
    )
    rebalance_s: float = setting(
        60.0,
        "Time for which another division of the layers must be predicted to be 15 % faster before layers are "
        "moved; 0: they never are.",
        ge=0,
        le=86400,
    )
    recovery_s: float = setting(
        120.0,
        "Time for which an answer waits for another pipeline when its own has lost a device; 0: it ends "
        "with an error at once.",
        ge=0,
        le=3600,
    )
    drain_s: float = setting(
        20.0,
        "Time for open sessions to finish when the agent is told to stop; systemd's TimeoutStopSec must be "
        "10 s longer.",
        ge=0,
        le=3600,
    )
    stop_s: Seconds = setting(2.0, "Time for each further step of stopping, after drain_s.")


class LogSettings(SettingsGroup):
    """The log, which goes to stderr."""

    format: Literal["text", "json"] = setting(
        "text", '"text", or "json" for one JSON object per line; see docs/agent.md.'
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", 'Lowest level to log: "debug", "info", "warning" or "error".'
    )


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

    @property
    def server_options(self) -> list[tuple[str, int]]:
        """Options of the agent's gRPC server: as of links, with room for the longest prompt that is taken."""
        largest = max(rule.request_bytes for rule in self.call_rules.values())
        options = dict(self.link.channel_options)
        options[_MAX_RECEIVED] = min(max(options[_MAX_RECEIVED], largest), (1 << 31) - 1)
        return list(options.items())

    @property
    def generate_request_bytes(self) -> int:
        """Most bytes of the message that asks for an answer."""
        return self.call_rules[GENERATE].request_bytes

    @property
    def call_rules(self) -> Mapping[str, MethodRule]:
        """What each method of the agent's server takes."""
        limits = self.limits
        return rules_for(
            prompt_bytes=limits.prompt_bytes,
            prompt_tokens=limits.prompt_tokens,
            generations=limits.sessions + limits.queued_requests,
            sessions_per_caller=limits.sessions_per_caller,
            sending=self.weights.max_sending,
        )
