"""A gateway that is a member of a cluster: its links to the draft node are mutual TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowedge.cli.main import EXIT_FAILURE, EXIT_USAGE
from flowedge.cluster.certificate_role import CertificateRole
from tests.cluster.clusters import Cluster, members
from tests.gateway.asking import COMPLETIONS, body
from tests.support.gateways import GatewayProcess, refused_start
from tests.support.processes import AgentProcess, running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("home"), 1)  # its service is off


@pytest.fixture(scope="module")
def agents(cluster: Cluster) -> Iterator[list[AgentProcess]]:
    """A draft node and a stage of the cluster."""
    states = [cluster.member("d0", CertificateRole.DRAFT_NODE), cluster.member("v1", CertificateRole.AGENT)]
    with members(states) as started:
        yield started


@pytest.fixture(scope="module")
def set_up(cluster: Cluster, agents: list[AgentProcess]) -> Iterator[str]:
    """The address of the draft node, after a gateway with the role admin has set its pipeline up."""
    admin = cluster.member("admin", CertificateRole.ADMIN)
    addresses = [agent.address for agent in agents]
    gateway = GatewayProcess("--cluster-dir", str(admin), peers=addresses)
    with running(gateway):
        yield addresses[0]


def refusal(directory: Path, *peers: str) -> tuple[int, str]:
    """Return the exit code and words of a gateway that does not start."""
    code, lines = refused_start(GatewayProcess("--cluster-dir", str(directory), peers=peers))
    return code, "\n".join(lines)


def test_a_client_of_the_cluster_serves(cluster: Cluster, set_up: str) -> None:
    client = cluster.member("gateway", CertificateRole.CLIENT)
    gateway = GatewayProcess("--cluster-dir", str(client), peers=[set_up])
    with running(gateway), gateway.client() as http:
        assert http.get("/health/ready").status_code == 200
        answer = http.post(COMPLETIONS, json=body(4))
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 4


def test_a_role_that_may_not_ask_is_refused(cluster: Cluster, set_up: str) -> None:
    stage = cluster.member("v9", CertificateRole.AGENT)
    gateway = GatewayProcess("--cluster-dir", str(stage), peers=[set_up])
    with running(gateway), gateway.client() as http:
        refused = http.post(COMPLETIONS, json=body(4))
    assert refused.status_code == 403
    error = refused.json()["error"]
    assert error["type"] == "permission_error"
    assert "role" in error["message"], error
    assert "client" in error["message"], error


def test_a_stranger_is_refused(set_up: str, tmp_path: Path) -> None:
    other = Cluster(tmp_path, 1)
    code, said = refusal(other.member("gateway", CertificateRole.CLIENT), set_up)
    assert code == EXIT_FAILURE
    assert "cluster" in said, said


def test_without_credentials_it_says_what_to_do(tmp_path: Path) -> None:
    code, said = refusal(tmp_path / "empty", "127.0.0.1:1")
    assert code == EXIT_USAGE
    assert "flowedge join" in said, said
