"""How commands look for agents."""

from __future__ import annotations

from flowedge.discovery.settings import DiscoverySettings


def discovery_settings() -> DiscoverySettings:
    """As this device's configuration has it; BadRequestError for one that is wrong."""
    from flowedge.agent.config.loading import load_config  # noqa: PLC0415

    return load_config({}).config.discovery.settings()
