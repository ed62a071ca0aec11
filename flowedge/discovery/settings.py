"""How a device makes itself known, and looks for others."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowedge.core.errors import BadRequestError
from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by
from flowedge.net.address import checked_address


def _checked_pattern(pattern: str) -> str:
    if not pattern or any(character.isspace() for character in pattern):
        raise BadRequestError(f"{pattern!r} is neither the name of an interface nor a subnet")
    return pattern


Peers = tuple[Annotated[str, checked_by(checked_address)], ...]
Patterns = tuple[Annotated[str, checked_by(_checked_pattern)], ...]


class DiscoverySettings(SettingsGroup):
    """How this device makes itself known, and looks for others."""

    peers: Annotated[Peers, Field(description='Agents that multicast does not reach, as ["host:port"].')] = ()
    allow: Annotated[
        Patterns,
        Field(
            description='Interfaces to use, as ["eth*", "192.168.1.0/24"]; empty: all except those of '
            "containers, virtual machines and VPNs."
        ),
    ] = ()
    deny: Annotated[Patterns, Field(description="Interfaces never to use, even if allowed.")] = ()
    ttl_s: Annotated[
        int, Field(ge=1, le=3600, description="Seconds of silence after which this device counts as stale.")
    ] = 30
    poll_s: Annotated[Seconds, Field(description="Seconds between two checks of the interfaces.")] = 5.0
