"""How a device makes itself known, and looks for others."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowedge.core.errors import BadRequestError
from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by
from flowedge.net.address import checked_address


def _interface_pattern(pattern: str) -> str:
    if not pattern or any(character.isspace() for character in pattern):
        raise BadRequestError(f"{pattern!r} is neither the name of an interface nor a subnet")
    return pattern


Interfaces = tuple[Annotated[str, checked_by(_interface_pattern)], ...]
"""Patterns of interfaces: a name (a shell pattern, "eth*") or a subnet ("192.168.1.0/24") each."""


class DiscoverySettings(SettingsGroup):
    """How this device makes itself known, and looks for others."""

    peers: Annotated[
        tuple[Annotated[str, checked_by(checked_address)], ...],
        Field(
            description='Agents that multicast does not reach, as ["host:port"]; used besides those found.'
        ),
    ] = ()
    allow: Annotated[
        Interfaces,
        Field(
            description='Interfaces to use, as ["eth*", "192.168.1.0/24"]; empty: all except those of '
            "containers, virtual machines and VPNs."
        ),
    ] = ()
    deny: Annotated[
        Interfaces, Field(description="Interfaces never to use; an interface in both lists is not used.")
    ] = ()
    ttl_s: Annotated[
        int,
        Field(
            ge=1,
            le=3600,
            description="Other devices call this device stale after so many seconds of silence.",
        ),
    ] = 30
    poll_s: Annotated[
        Seconds,
        Field(description="Seconds between two checks for interfaces that have come, gone or changed."),
    ] = 5.0
