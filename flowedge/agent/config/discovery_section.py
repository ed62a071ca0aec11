"""The configuration of finding devices, for agents and for the commands that look for them."""

from __future__ import annotations

from pydantic import Field, model_validator

from flowedge.agent.config.section import Section
from flowedge.core.errors import BadRequestError
from flowedge.discovery.settings import DiscoverySettings

_DEFAULT = DiscoverySettings()


class DiscoverySection(Section):
    """How this device makes itself known, and looks for others."""

    peers: tuple[str, ...] = Field(
        default=_DEFAULT.peers,
        description='Agents that multicast does not reach, as ["host:port"]; used besides those found.',
    )
    allow: tuple[str, ...] = Field(
        default=_DEFAULT.allow,
        description='Interfaces to use, as ["eth*", "192.168.1.0/24"]; empty: all but those of containers, '
        "virtual machines and VPNs.",
    )
    deny: tuple[str, ...] = Field(
        default=_DEFAULT.deny, description="Interfaces never to use; goes before allow."
    )
    ttl_s: int = Field(
        default=_DEFAULT.ttl_s,
        ge=1,
        le=3600,
        description="Seconds without a word after which others take this device for stale.",
    )
    poll_s: float = Field(
        default=_DEFAULT.poll_s,
        gt=0,
        description="Seconds between looks for interfaces that have come, gone or changed.",
    )

    def settings(self) -> DiscoverySettings:
        """What discovery is run with."""
        return DiscoverySettings(**self.model_dump())

    @model_validator(mode="after")
    def _usable(self) -> DiscoverySection:
        try:
            self.settings()
        except BadRequestError as error:
            raise ValueError(str(error)) from error
        return self
