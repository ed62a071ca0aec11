"""What an agent says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.v1 import agent_pb2 as pb

IDLE = "idle"


@dataclass(frozen=True)
class Device:
    """A device, its memory and the role it has taken; sizes are bytes."""

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
    layers: tuple[int, int]  # half-open; (0, 0) when it holds none
    resident_bytes: int
    weight_bytes: int
    cache_bytes: int
    stage_addresses: tuple[str, ...]  # of a draft node, in pipeline order
    pipeline: str
    drafter: str
    quant: str
    middles: tuple[tuple[str, str], ...] = ()  # of a draft node: each middle model and its agent's address
    stage_layers: tuple[int, ...] = ()  # of a draft node, how many each of its stages holds
    instance: str = ""  # another one at each start of the agent
    certified_role: str = ""  # what its certificate is for; empty when it has joined no cluster

    @classmethod
    def from_proto(cls, reply: pb.Device) -> Device:
        """The reply to Describe."""
        return cls(
            id=reply.id,
            name=reply.name,
            kind=reply.kind,
            address=reply.address,
            memory_total=reply.memory_total,
            memory_available=reply.memory_available,
            protocol_version=reply.protocol_version,
            version=reply.version,
            role=reply.role or IDLE,
            model=reply.model,
            layers=(reply.layer_start, reply.layer_stop),
            resident_bytes=reply.resident_bytes,
            weight_bytes=reply.weight_bytes,
            cache_bytes=reply.cache_bytes,
            stage_addresses=tuple(reply.stage_addresses),
            pipeline=reply.pipeline,
            drafter=reply.drafter,
            quant=reply.quant,
            middles=tuple((middle.model, middle.address) for middle in reply.middles),
            stage_layers=tuple(reply.stage_layers),
            instance=reply.instance,
            certified_role=reply.certified_role,
        )
