"""In which order the agents of a cluster are started again while requests run, and what ends that."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from flowedge.client import Device
from flowedge.client.device import IDLE
from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.network.address import split_address

_PLACES = re.compile(r"\{(name|host|address)\}")
_PLAIN = re.compile(r"[A-Za-z0-9._:\[\]-]+")


class Duty(IntEnum):
    """What a device does; the order is that of an upgrade, which begins where least is at stake."""

    IDLE = 0
    STAGE = 1
    STANDBY = 2
    DRAFT_NODE = 3

    def __str__(self) -> str:
        return {Duty.IDLE: "idle", Duty.STAGE: "stage", Duty.STANDBY: "standby"}.get(self, "draft node")


@dataclass(frozen=True)
class Restart:
    """One agent that is to be started again.

    Attributes:
        address: at which it answers; instance: of the process before (see Device).
    """

    name: str
    address: str
    duty: Duty
    version: str
    protocol: int
    instance: str


def duty_of(device: Device, standbys: Sequence[str], address: str) -> Duty:
    """Return what a device does; `standbys` are addresses that draft nodes name."""
    if device.stage_addresses or device.role == "draft node":
        return Duty.DRAFT_NODE
    if device.stands_by_for or address in standbys:
        return Duty.STANDBY
    return Duty.IDLE if device.role == IDLE else Duty.STAGE


def restarts(devices: Mapping[str, Device], names: Sequence[str] = (), wanted: str = "") -> list[Restart]:
    """Return the agents to start again, in order: those that do nothing, stages, standbys, draft nodes.

    Args:
        devices: by address; names: of the devices that are wanted, all by default.
        wanted: the version that is wanted; agents that have it are left out. "": all are started again.

    Raises:
        BadRequestError: when no device has one of the names.
    """
    known = {device.name for device in devices.values()}
    if missing := [name for name in names if name not in known]:
        raise BadRequestError(
            f"no device is named {', '.join(missing)}; there are {', '.join(sorted(known))}"
        )
    standbys = [device.standby for device in devices.values() if device.standby]
    found = [
        Restart(
            device.name,
            address,
            duty_of(device, standbys, address),
            device.version,
            device.protocol_version,
            device.instance,
        )
        for address, device in devices.items()
        if (not names or device.name in names) and device.version != wanted
    ]
    return sorted(found, key=lambda each: (each.duty, each.name))


def check_new(device: Device, wanted: str, others: Sequence[Device], *, last: bool) -> None:
    """Check an agent that was started again, before the next one is.

    Args:
        wanted: the version that it should have; "" for any.
        others: the agents that are not started again yet; last: whether it was the last one.

    Raises:
        BadRequestError: when it has another version.
        ProtocolError: when it cannot be in a pipeline with the others.
    """
    if wanted and device.version != wanted:
        raise BadRequestError(
            f"device {device.name} has version {device.version} after the command, not {wanted}; "
            "look at what the command installed there"
        )
    foreign = [each for each in others if each.protocol_version != device.protocol_version]
    if foreign and not last:
        raise ProtocolError(
            f"device {device.name} speaks protocol {device.protocol_version} now, {foreign[0].name} still "
            f"{foreign[0].protocol_version}, so no pipeline can have both. Give --together to start all "
            f"again at once, where running answers end, or install {foreign[0].version} on {device.name}"
        )


def command_for(command: str, restart: Restart) -> str:
    """Return the shell command for one device, with its name, host and address in place of {name} and so on.

    Raises:
        BadRequestError: when what stands there would be more than a word to a shell.
    """
    host, _ = split_address(restart.address)
    values = {"name": restart.name, "host": host, "address": restart.address}

    def value(found: re.Match[str]) -> str:
        text = values[found[1]]
        if _PLAIN.fullmatch(text) is None:
            raise BadRequestError(
                f"the device calls itself {shlex.quote(text)}, which is not put into a command; use {{host}}"
            )
        return text

    return _PLACES.sub(value, command)


def ready_pipelines(devices: Mapping[str, Device]) -> int:
    """Return how many pipelines answer requests."""
    return sum(bool(device.stage_addresses) and not device.not_ready for device in devices.values())
