"""The devices that a plan may use, and the links between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from flowedge.core.errors import BadRequestError
from flowedge.planning.profile import shipped
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.model import YamlDocument
from flowedge.planning.profile.profile_files import read_document

MOST_DEVICES = 64
WITHIN = LinkProfile(title="one device", source="no network", mbps=1e5, latency_ms=0.0)


@dataclass(frozen=True)
class Fleet:
    """Devices by name, and their links.

    Attributes:
        link: between two devices for which `links` has none.
        links: by the names of both.
    """

    devices: Mapping[str, DeviceProfile]
    link: LinkProfile
    links: Mapping[frozenset[str], LinkProfile]

    def between(self, one: str, other: str) -> LinkProfile:
        """Return the link between two devices, the same in both directions; roles of one device need none."""
        if one == other:
            return WITHIN
        return self.links.get(frozenset((one, other)), self.link)

    def with_another(self, name: str) -> Fleet:
        """Return the fleet with one more device like the one of this name, on the usual link."""
        return Fleet({**self.devices, f"another {name}": self.devices[name]}, self.link, self.links)


class _Board(YamlDocument):
    profile: str
    memory_gib: float | None = Field(default=None, gt=0)


class _Link(YamlDocument):
    profile: str
    mbps: float | None = Field(default=None, gt=0)
    latency_ms: float | None = Field(default=None, ge=0)


class _LinkBetween(_Link):
    between: tuple[str, str]


class _Links(YamlDocument):
    default: _Link | str = "gigabit"
    others: tuple[_LinkBetween, ...] = ()


class _FleetFile(YamlDocument):
    devices: Annotated[dict[str, _Board | str], Field(min_length=1, max_length=MOST_DEVICES)]
    links: _Links = _Links()


def read_fleet(path: Path) -> Fleet:
    """Return the fleet that a file describes:

        devices:
          kitchen: orin-nano-8gb
          desk: {profile: pc-8core, memory_gib: 12}
        links:
          default: {profile: gigabit, latency_ms: 0.3}
          others:
            - {between: [kitchen, desk], profile: wifi5}

    A profile is the name of a shipped one, or a .yaml file beside this one.

    Raises:
        BadRequestError: when the file cannot be read, or names a profile or device that there is not.
    """
    content, beside = read_document(path, _FleetFile), path.parent
    devices = {}
    for name, given in content.devices.items():
        board = _Board(profile=given) if isinstance(given, str) else given
        profile = shipped.device(board.profile, beside)
        if board.memory_gib is not None:
            profile = profile.model_copy(update={"memory_gib": board.memory_gib})
        devices[name] = profile
    links = {}
    for other in content.links.others:
        if unknown := sorted(set(other.between) - set(devices)):
            raise BadRequestError(f"{path}: links: there is no device {', '.join(unknown)}")
        links[frozenset(other.between)] = _link(other, beside)
    default = content.links.default
    usual = _link(_Link(profile=default) if isinstance(default, str) else default, beside)
    return Fleet(devices, usual, links)


def _link(given: _Link, beside: Path) -> LinkProfile:
    changes = {name: value for name in ("mbps", "latency_ms") if (value := getattr(given, name)) is not None}
    return shipped.link(given.profile, beside).model_copy(update=changes)
