"""A cluster of a module's own, and its CA's service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.clusters import Cluster, enrolment_service
from tests.support.free_ports import free_ports
from tests.support.processes import FlowEdgeProcess


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A cluster whose service is off, unless the module uses `service`."""
    return Cluster(tmp_path_factory.mktemp("home"), free_ports(2))


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[FlowEdgeProcess]:
    with enrolment_service(cluster) as process:
        yield process
