"""What an agent reports about its device and its role, and a draft node about its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from flowedge.core.errors import DeviceError, PipelineNotReadyError
from flowedge.core.generate_options import GREEDY, GenerateOptions
from flowedge.core.pipeline_config import AUTO, ON, PipelineConfig, drafter_label
from flowedge.device.compute import ComputeChoice
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

IDLE = "idle"
UNKNOWN_COMPUTE = ComputeChoice("", "", ())


@dataclass(frozen=True)
class Device:
    """A device, its memory and its role; sizes in bytes.

    Attributes:
        layers: half-open range of layers held by a stage; (0, 0) without a stage.
        stage_addresses: of a draft node, its stages in pipeline order.
        pipeline: label of its pipeline (see pipeline_label), empty without a role.
        config: the settings of its pipeline: what it has chosen, when it is ready, where they leave a choice,
            and before that as they were asked for. None without a role, and from a device of another version.
        middles: of a draft node, (model, addresses of its agents) of each middle model.
        instance: differs at each start of the agent.
        certified_role: the roles in its certificate, such as "agent,client"; empty when the device has
            joined no cluster.
        revocation_number: of the revocation list that it has; 0 when it has joined no cluster.
        compute: what it computes on, without a quantisation.
        draft_tokens: of a draft node whose drafter is a model, the number of tokens that it proposes.
        sessions, waiting: of a draft node, sessions that are open and requests that wait for one.
        context_tokens: of a draft node, most tokens of a prompt with its answer; 0 if not known.
        request_bytes: of a draft node, most bytes of a GenerateRequest as a message; 0 if not known.
        family: of a draft node, the architecture that the model's config names.
        capabilities: of a draft node, what the model is made for beside texts: "tools", "thinking".
        not_ready: why the pipeline that it leads, or has to lead by its settings, is not ready; "" if it is.
        temperature: of the hottest zone, in degrees Celsius; None where the device reports none.
        sampling: of a draft node, the model's own temperature, top_p and top_k, as far as it names them.
        no_chat_template: of a draft node, whether the model has no chat template, so that it continues text.
        standby: of a draft node, the address of the agent that leads its pipeline when it is lost.
        stands_by_for: of such an agent, the address of the draft node.
        power: that the board draws, in watts; None where it has no monitor.
        plan: of a draft node, how the layers were divided by what the devices measured; "" if they were not.
        proposal: of a draft node, how they had better be divided now; "" where that is not known.
        throttled: what slows the device down, such as heat; "" where nothing does.
    """

    id: str
    name: str
    kind: str
    address: str
    memory_total: int
    memory_available: int
    protocol_version: int
    version: str
    role: str
    layers: tuple[int, int]
    resident_bytes: int
    weight_bytes: int
    cache_bytes: int
    stage_addresses: tuple[str, ...]
    pipeline: str
    config: PipelineConfig | None = None
    middles: tuple[tuple[str, tuple[str, ...]], ...] = ()
    instance: str = ""
    certified_role: str = ""
    revocation_number: int = 0
    compute: ComputeChoice = UNKNOWN_COMPUTE
    draft_tokens: int = 0
    sessions: int = 0
    waiting: int = 0
    context_tokens: int = 0
    request_bytes: int = 0
    family: str = ""
    capabilities: tuple[str, ...] = ()
    not_ready: str = ""
    temperature: float | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    no_chat_template: bool = False
    standby: str = ""
    stands_by_for: str = ""
    power: float | None = None
    plan: str = ""
    proposal: str = ""
    throttled: str = ""

    @property
    def middle_addresses(self) -> tuple[str, ...]:
        """Of a draft node, the addresses of all agents of middle models, the smallest model's first."""
        return tuple(address for _, addresses in self.middles for address in addresses)

    def __getattr__(self, name: str) -> Any:
        """Return a setting of the pipeline, such as `model`; "" without a role."""
        if name not in PipelineConfig.model_fields:
            raise AttributeError(f"a device has no {name}")
        return "" if self.config is None else getattr(self.config, name)

    @property
    def dtype(self) -> str:
        """The dtype of weights, KV cache and hidden states; "" before it is known."""
        return "" if self.config is None or self.config.dtype == AUTO else self.config.dtype

    @property
    def exact(self) -> bool:
        """Whether the bits of a row do not depend on the rows beside it."""
        return self.config is not None and self.config.exact == ON

    @property
    def drafter(self) -> str:
        """Of a draft node, the names of its drafters as one text (see drafter_label)."""
        if self.config is None or self.config.drafter is None:
            return ""
        return drafter_label(self.config.drafters)

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Of a draft node, the number of layers of each stage."""
        return () if self.config is None else self.config.split

    def content(self) -> dict[str, Any]:
        """Return the description for a JSON document, with the settings beside the rest."""
        settings = (
            dict.fromkeys(PipelineConfig.model_fields, "") if self.config is None else self.config.settings()
        )
        layers = self.stage_layers
        rest = {name: value for name, value in asdict(self).items() if name != "config"}
        return (
            settings
            | rest
            | {"drafter": self.drafter, "exact": self.exact, "split": layers, "stage_layers": layers}
        )

    @classmethod
    def from_proto(cls, reply: pb.Device) -> Device:
        """Read the reply to Describe; an agent without a role is IDLE.

        Raises:
            BadRequestError: when a device of this version sends settings that cannot be used.
        """
        converted = {"role", "layers", "stage_addresses", "middles", "config", "compute", "temperature"}
        converted |= {"capabilities", "sampling", "power"}
        names = {field.name for field in fields(cls)} - converted
        plain: dict[str, Any] = {name: getattr(reply, name) for name in names}
        has_config = reply.config and reply.protocol_version == PROTOCOL_VERSION
        return cls(
            role=reply.role or IDLE,
            layers=(reply.layer_start, reply.layer_stop),
            stage_addresses=tuple(reply.stage_addresses),
            capabilities=tuple(reply.capabilities),
            middles=tuple((middle.model, tuple(middle.addresses)) for middle in reply.middles),
            config=PipelineConfig.from_json(reply.config) if has_config else None,
            compute=ComputeChoice(
                reply.compute.device,
                reply.compute.processor,
                tuple(reply.compute.dtypes),
                reply.compute.reason,
            ),
            temperature=reply.temperature if reply.HasField("temperature") else None,
            power=reply.power if reply.HasField("power") else None,
            sampling=_sampling(reply.sampling),
            **plain,
        )


def _sampling(text: str) -> Mapping[str, float]:
    """Read how a draft node says that its model has tokens drawn.

    Raises:
        BadRequestError: when it cannot be read.
    """
    options = GenerateOptions.from_json(text)
    own = {name: getattr(options, name) for name in GREEDY}
    return {name: value for name, value in own.items() if value is not None}


@dataclass(frozen=True)
class DraftNodeStatus:
    """What a draft node serves, and its requests.

    Attributes:
        quant: of the layers; drafter: the names of the drafters as one text.
        stages: number of stages.
        running, waiting: numbers of requests that are served, and that wait for room.
        context_tokens: most tokens of a prompt with its answer; 0 if not known.
        request_bytes: most bytes of a GenerateRequest as a message; 0 if not known.
    """

    name: str
    model: str
    quant: str
    drafter: str
    stages: int
    running: int
    waiting: int
    context_tokens: int
    request_bytes: int

    @classmethod
    def of(cls, device: Device) -> DraftNodeStatus:
        """Read a device's description.

        Raises:
            DeviceError: when the device is not the draft node of a pipeline.
            PipelineNotReadyError: while its pipeline is being set up.
        """
        if device.not_ready:
            raise PipelineNotReadyError(device.name, device.not_ready)
        if not device.stage_addresses:
            raise DeviceError(device.name, "it is not a draft node; ask the draft node of a pipeline")
        return cls(
            name=device.name,
            model=device.model,
            quant=device.quant,
            drafter=device.drafter,
            stages=len(device.stage_addresses),
            running=device.sessions,
            waiting=device.waiting,
            context_tokens=device.context_tokens,
            request_bytes=device.request_bytes,
        )
