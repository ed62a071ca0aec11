"""The identity of a device: its id, which one agent at a time holds, and its addresses."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import re
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flowedge.agent.agent_config import AgentConfig
from flowedge.cluster.certificate_role import text_of
from flowedge.cluster.process import current
from flowedge.core.errors import AccessError, DeviceError
from flowedge.core.log_fields import about
from flowedge.device import private_files
from flowedge.device.board.device_kind import device_kind
from flowedge.device.board.power import board_power
from flowedge.device.board.temperature import hottest
from flowedge.device.compute import CPU, DeviceCompute
from flowedge.device.memory import (
    AvailableMemory,
    MemorySettings,
    is_torch_loaded,
    read_available_memory,
    read_memory_of,
    resident_bytes,
)
from flowedge.device.state_dir import state_dir
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.network.address import WILDCARDS, join_address, split_address
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION, VERSION

ID_FILE = "device-id"
_LOCK_FILE = "device-id.lock"
_ID = re.compile(r"[0-9a-f]{16}")
_log = logging.getLogger(__name__)


@dataclass
class DeviceId:
    """An id, and the lock by which no other agent of this machine takes it.

    Attributes:
        lock: a file descriptor; None for an id that is used until this agent ends.
    """

    value: str
    lock: int | None

    @classmethod
    def claim(cls, directory: Callable[[], Path] = state_dir) -> DeviceId:
        """Return the id that a directory holds, which is written if there is none.

        If another agent of this machine holds it, or the directory cannot be used, the id is new and used for
        this start only. The log says so.
        """
        lock: int | None = None
        try:
            path = directory()
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(_stored_id(path / ID_FILE), lock)
        except BlockingIOError:
            fields = about(event="device_id_taken", reason="another agent of this machine holds it")
            _log.info(
                "another agent holds the id in %s: this agent has a new id, until it ends", path, extra=fields
            )
        except (OSError, DeviceError, AccessError) as error:
            _log.warning(
                "the id cannot be stored (%s): this agent has a new id at every start; "
                "set FLOWEDGE_STATE_DIR to a directory for it",
                error,
                extra=about(event="device_id_not_kept", reason=str(error)),
            )
        if lock is not None:
            os.close(lock)
        return cls(_new_id(), None)

    def release(self) -> None:
        lock, self.lock = self.lock, None
        if lock is not None:
            os.close(lock)


def _stored_id(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        text = path.read_text(encoding="ascii", errors="replace").strip()
        if _ID.fullmatch(text):
            return text
        fields = about(event="device_id_replaced", reason=f"{path} held none")
        _log.warning("%s holds no id: a new one is written", path, extra=fields)
    new = _new_id()
    private_files.write(path, f"{new}\n".encode())
    return new


def _new_id() -> str:
    return uuid.uuid4().hex[:16]


def device_name(config: AgentConfig) -> str:
    return config.agent.name or platform.node() or "device"


@dataclass(frozen=True)
class DeviceInfo:
    """Identity, address and hardware of a running agent.

    Attributes:
        id: the same at every start; instance: another one at each start.
        kind: of the hardware; host, port: where the agent listens.
        compute: what the device can compute on.
        cuda_graphs: whether a GPU records small forwards as CUDA graphs.
    """

    id: str
    name: str
    kind: str
    host: str
    port: int
    compute: DeviceCompute
    instance: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    memory: MemorySettings = field(default_factory=MemorySettings)
    cuda_graphs: bool = True

    @classmethod
    def of(
        cls, config: AgentConfig, port: int, compute: DeviceCompute, device_id: str | None = None
    ) -> DeviceInfo:
        """Return the identity of this device; without an id (see DeviceId) it gets a new one."""
        return cls(
            device_id or uuid.uuid4().hex[:16],
            device_name(config),
            config.agent.device_kind or device_kind(),
            config.agent.host or "127.0.0.1",
            port,
            compute,
            memory=config.memory,
            cuda_graphs=config.agent.cuda_graphs,
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
            memory_total=self._memory(self.compute.best.device).total,
            protocol_version=PROTOCOL_VERSION,
            version=VERSION,
            compute=self.compute.best.device,
            instance=self.instance,
            cluster=current().cluster,
        )

    def describe(self, quant: str = "") -> pb.Device:
        """Return the device's description, without its role.

        quant: the quantisation of the layers that the compute device has to be for; "" for none.
        """
        compute = self.compute.best_for(quant)
        room, store = self._memory(compute.device), current().store
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
            temperature=hottest(),
            power=board_power(),
            instance=self.instance,
            certified_role=text_of(current().roles),
            revocation_number=store.revoked.number if store is not None else 0,
            compute=pb.Compute(
                device=compute.device,
                processor=compute.processor,
                dtypes=compute.dtypes,
                reason=compute.reason,
                cuda_graphs=self.cuda_graphs and compute.device != CPU,
            ),
        )

    def _memory(self, device: str) -> AvailableMemory:
        gpu = self.compute.gpu
        if device == CPU or gpu is None or gpu.integrated:
            return read_available_memory(self.memory)
        if not is_torch_loaded():
            return AvailableMemory(gpu.memory_total, gpu.memory_free, "the GPU's memory at the agent's start")
        return read_memory_of(device, self.memory)
