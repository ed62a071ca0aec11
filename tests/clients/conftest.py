"""The gateway that all foreign clients ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gateways import GatewayProcess, gateway_before
from tests.support.processes import agents, become_pipeline
from tests.support.scheduling import shared


@pytest.fixture(scope="session", params=shared("clients"))
def asked_gateway(processes_end: None) -> Iterator[GatewayProcess]:
    """`flowedge serve` in front of the bundled model over two stages, each a real process."""
    with agents(["clients-d0", "clients-v1", "clients-v2"]) as cluster:
        become_pipeline(cluster)
        with gateway_before(cluster[0].address) as gateway:
            yield gateway
