"""Devices that cannot be told apart by what they say of themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol


class NamedDevice(Protocol):
    """A device, as it is advertised or as it describes itself."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...


@dataclass(frozen=True)
class Duplicate:
    """Several devices with the same id, or with the same name.

    Attributes:
        what: "id" or "name"; value: what they share; devices: "name (address)", sorted.
    """

    what: str
    value: str
    devices: tuple[str, ...]

    def __str__(self) -> str:
        return f"the {self.what} {self.value!r} is that of {' and of '.join(self.devices)}"


def duplicates(devices: Iterable[NamedDevice]) -> list[Duplicate]:
    """Ids first. Devices are told apart by their addresses; those of one id are not named for their name."""
    by_address = {device.address: device for device in devices}
    found = _shared("id", by_address.values(), lambda device: device.id)
    one_an_id = {device.id: device for device in by_address.values()}
    return found + _shared("name", one_an_id.values(), lambda device: device.name)


def _shared(what: str, devices: Iterable[NamedDevice], key: Callable[[NamedDevice], str]) -> list[Duplicate]:
    groups: dict[str, list[NamedDevice]] = defaultdict(list)
    for device in devices:
        groups[key(device)].append(device)
    return [
        Duplicate(what, value, tuple(sorted(f"{device.name} ({device.address})" for device in group)))
        for value, group in sorted(groups.items())
        if len(group) > 1
    ]
