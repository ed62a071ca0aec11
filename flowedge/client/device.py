"""What an agent reports about its device and its role."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from flowedge.device.compute import ComputeChoice
from flowedge.v1 import agent_pb2 as pb

IDLE = "idle"
UNKNOWN_COMPUTE = ComputeChoice("", "", ())


@dataclass(frozen=True)
class Device:
    """A device, its memory and its role; sizes in bytes.

    Attributes:
        layers: half-open range of layers held by a stage; (0, 0) without a stage.
        stage_addresses: of a draft node, its stages in pipeline order.
        pipeline: label of its pipeline (see pipeline_label), empty without a role.
        drafter: of a draft node, the names of its drafters as one text (see drafter_label).
        middles: of a draft node, (model, address of its agent) of each middle model.
        stage_layers: of a draft node, the number of layers of each stage.
        instance: differs at each start of the agent.
        certified_role: the roles in its certificate, such as "agent,client"; empty when the device has
            joined no cluster.
        compute: what it computes on, without a quantisation.
        dtype: of the weights, KV cache and hidden states of its role; kv: the form of the KV cache.
        exact: whether the bits of a row do not depend on the rows beside it.
        verification: of a draft node, where the target's tokens are drawn.
        draft_vocabulary: of a draft node, what was asked for (see DraftForm.vocabulary).
        draft_quant, draft_tokens: of a draft node whose drafter is a model, the format of its layers and the
            number of tokens that it proposes.
        sessions, waiting: of a draft node, sessions that are open and requests that wait for one.
        context_tokens: of a draft node, most tokens of a prompt with its answer; 0 if not known.
        temperature: of the hottest zone, in degrees Celsius; None where the device reports none.
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
    model: str
    layers: tuple[int, int]
    resident_bytes: int
    weight_bytes: int
    cache_bytes: int
    stage_addresses: tuple[str, ...]
    pipeline: str
    drafter: str
    quant: str
    middles: tuple[tuple[str, str], ...] = ()
    stage_layers: tuple[int, ...] = ()
    instance: str = ""
    certified_role: str = ""
    compute: ComputeChoice = UNKNOWN_COMPUTE
    dtype: str = ""
    kv: str = ""
    exact: bool = False
    tokenizer: str = ""
    verification: str = ""
    draft_vocabulary: str = ""
    draft_quant: str = ""
    draft_tokens: int = 0
    sessions: int = 0
    waiting: int = 0
    context_tokens: int = 0
    temperature: float | None = None

    @classmethod
    def from_proto(cls, reply: pb.Device) -> Device:
        """Read the reply to Describe; an agent without a role is IDLE."""
        converted = {"role", "layers", "stage_addresses", "middles", "stage_layers", "compute", "temperature"}
        names = {field.name for field in fields(cls)} - converted
        plain: dict[str, Any] = {name: getattr(reply, name) for name in names}
        return cls(
            role=reply.role or IDLE,
            layers=(reply.layer_start, reply.layer_stop),
            stage_addresses=tuple(reply.stage_addresses),
            middles=tuple((middle.model, middle.address) for middle in reply.middles),
            stage_layers=tuple(reply.stage_layers),
            compute=ComputeChoice(
                reply.compute.device,
                reply.compute.processor,
                tuple(reply.compute.dtypes),
                reply.compute.reason,
            ),
            temperature=reply.temperature if reply.HasField("temperature") else None,
            **plain,
        )
