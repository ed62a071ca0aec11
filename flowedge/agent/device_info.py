"""The identity of a device and its addresses."""

from __future__ import annotations

import platform
import socket
import uuid
from dataclasses import dataclass, field

from flowedge.agent.config.agent_config import AgentConfig
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.net.address import WILDCARDS, join_address, split_address
from flowedge.security.process import current
from flowedge.system.device_kind import device_kind
from flowedge.system.memory import MemorySettings, read_available_memory, resident_bytes
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION, VERSION


def device_name(config: AgentConfig) -> str:
    return config.agent.name or platform.node() or "device"


@dataclass(frozen=True)
class DeviceInfo:
    """Identity and address of a running agent.

    Attributes:
        id: the same at every start; instance: another one at each start.
        kind: of the hardware; host, port: where the agent listens.
    """

    id: str
    name: str
    kind: str
    host: str
    port: int
    instance: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    memory: MemorySettings = field(default_factory=MemorySettings)

    @classmethod
    def of(cls, config: AgentConfig, port: int, device_id: str | None = None) -> DeviceInfo:
        """Return the identity of this device; without an id (see device_id.py) it gets a new one."""
        return cls(
            device_id or uuid.uuid4().hex[:16],
            device_name(config),
            config.agent.device_kind or device_kind(),
            config.agent.host or "127.0.0.1",
            port,
            memory=config.memory,
        )

    @property
    def address(self) -> str:
        """The address on which the agent listens; its host may be a wildcard."""
        return join_address(self.host or "0.0.0.0", self.port)

    def address_for(self, peer: str) -> str:
        """Return the address at which the device at the address `peer` reaches this one."""
        if self.host not in WILDCARDS:
            return self.address
        host, port = split_address(peer)
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing, but the system chooses a route and so our address
            return join_address(str(probe.getsockname()[0]), self.port)

    def record(self) -> AdvertisedDevice:
        """Return what the device advertises by zeroconf."""
        return AdvertisedDevice(
            name=self.name,
            id=self.id,
            address=self.address,
            kind=self.kind,
            memory_total=read_available_memory(self.memory).total,
            protocol_version=PROTOCOL_VERSION,
            version=VERSION,
            instance=self.instance,
            cluster=current().cluster,
        )

    def describe(self) -> pb.Device:
        """Return the device's description, without its role."""
        room = read_available_memory(self.memory)
        return pb.Device(
            id=self.id,
            name=self.name,
            kind=self.kind,
            address=self.address,
            memory_total=room.total,
            memory_available=room.available,
            protocol_version=PROTOCOL_VERSION,
            version=VERSION,
            resident_bytes=resident_bytes(),
            instance=self.instance,
            certified_role=current().role or "",
        )
