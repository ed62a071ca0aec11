"""The gateway that the dialects of HTTP are tested with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.application import GatewayHere, gateway_here


@pytest.fixture(scope="session")
def served(cluster4: str) -> Iterator[GatewayHere]:
    """A gateway in this process in front of cluster4; `gateway4` is the same over sockets."""
    with gateway_here(cluster4) as gateway:
        yield gateway
