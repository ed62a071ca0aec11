"""How a device makes itself known, and looks for others."""

from __future__ import annotations

import re
from typing import Annotated

from flowedge.core.errors import BadRequestError
from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by, setting
from flowedge.network.address import checked_address

SERVICE_TYPE = "_flowedge._tcp.local."


def _checked_pattern(pattern: str) -> str:
    if not pattern or any(character.isspace() for character in pattern):
        raise BadRequestError(f"{pattern!r} is neither the name of an interface nor a subnet")
    return pattern


def _checked_group(group: str) -> str:
    if not re.fullmatch("[a-z0-9]{0,6}", group):
        raise BadRequestError(f"the group {group!r} must consist of at most 6 lower-case letters and digits")
    return group


Peers = tuple[Annotated[str, checked_by(checked_address)], ...]
Patterns = tuple[Annotated[str, checked_by(_checked_pattern)], ...]


class DiscoverySettings(SettingsGroup):
    """How this device makes itself known, and looks for others."""

    peers: Peers = setting(
        (), 'Agents that multicast does not reach, as ["host:port"]; used in addition to the agents found.'
    )
    allow: Patterns = setting(
        (),
        'Interfaces to use, as ["eth*", "192.168.1.0/24"]. Empty: all except those of containers, '
        "virtual machines and VPNs.",
    )
    deny: Patterns = setting((), "Interfaces not to use, even if allowed.")
    ttl_s: int = setting(
        30, "Seconds of silence after which other devices consider this device stale.", ge=1, le=3600
    )
    group: Annotated[str, checked_by(_checked_group)] = setting(
        "",
        "Name of a group: agents and commands find only agents of the same group. At most 6 lower-case "
        "letters and digits. Empty: the group of all agents without a name here.",
    )
    poll_s: Seconds = setting(5.0, "Seconds between checks for added, removed or changed interfaces.")

    @property
    def service_type(self) -> str:
        """The DNS-SD type of the agents that are announced and searched for."""
        return f"_flowedge-{self.group}._tcp.local." if self.group else SERVICE_TYPE
