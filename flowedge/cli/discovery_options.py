"""How commands look for agents."""

from __future__ import annotations

from flowedge.cluster.discovery_settings import DiscoverySettings


def discovery_settings() -> DiscoverySettings:
    """Of this device."""
    return DiscoverySettings()
