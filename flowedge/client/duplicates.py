"""Devices that share an id or a name and so cannot be told apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flowedge.client.survey import SurveyedAgent


@dataclass(frozen=True)
class Duplicate:
    """Several devices with the same id, or with the same name.

    Attributes:
        what: "id" or "name".
        value: the id or the name that the devices share.
        devices: "name (address)" of each, sorted.
    """

    what: str
    value: str
    devices: tuple[str, ...]

    def __str__(self) -> str:
        return f"the {self.what} {self.value!r} is that of {' and of '.join(self.devices)}"


def duplicates(devices: Iterable[SurveyedAgent]) -> list[Duplicate]:
    """Return shared ids, then shared names; a name shared only by devices of one id is left out.

    Two entries with the same address count as one device.
    """
    by_address = {device.address: device for device in devices}
    found = _shared("id", by_address.values(), lambda device: device.id)
    one_an_id = {device.id: device for device in by_address.values()}
    return found + _shared("name", one_an_id.values(), lambda device: device.name)


def _shared(
    what: str, devices: Iterable[SurveyedAgent], key: Callable[[SurveyedAgent], str]
) -> list[Duplicate]:
    groups: dict[str, list[SurveyedAgent]] = defaultdict(list)
    for device in devices:
        groups[key(device)].append(device)
    return [
        Duplicate(what, value, tuple(sorted(f"{device.name} ({device.address})" for device in group)))
        for value, group in sorted(groups.items())
        if len(group) > 1
    ]
