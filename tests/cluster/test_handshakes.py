"""Floods of handshakes and connections by attackers; agents and the CA's service go on serving."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flowedge.client import Client
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.enrolment import refresh_revoked
from flowedge.cluster.process import Security
from tests.cluster.clusters import Cluster, members
from tests.cluster.floods import HandshakeFlood, attacker_context, count_open, handshake, silent_connections
from tests.support.blocks import BLOCKS
from tests.support.free_ports import free_ports
from tests.support.processes import AgentProcess, FlowEdgeProcess, running
from tests.support.waiting import await_that

ATTACKER, SILENT = "127.0.0.2", "127.0.0.4"
HANG_S = 300.0
shards = [f"shard{number}" for number in range(BLOCKS)]

pytestmark = pytest.mark.usefixtures("silent")


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[AgentProcess]:
    with members([cluster.member("kitchen", CertificateRole.AGENT)]) as (made,):
        yield made


@pytest.fixture(scope="module")
def silent(agent: AgentProcess) -> Iterator[socket.socket]:
    """A connection that says nothing from the first test on; it is the only one of its address."""
    with silent_connections(agent.address, 1, SILENT) as (connection,):
        yield connection


@pytest.fixture(scope="module")
def laptop(cluster: Cluster) -> Security:
    return cluster.security("laptop", CertificateRole.CLIENT)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """The certificate of a member of another cluster."""
    other = Cluster(tmp_path_factory.mktemp("other"), 1)
    return attacker_context(CredentialStore.open(other.member("x", CertificateRole.AGENT)).member_file)


def check_serves(agent: AgentProcess, laptop: Security) -> None:
    """Check that a member that connects anew is served."""
    with Client(agent.address, name="kitchen", security=laptop) as client:
        assert client.describe().certified_role == "agent"


@pytest.mark.parametrize(
    "number", [500, *(pytest.param(2_112, id=shard, marks=pytest.mark.proof) for shard in shards)]
)
def test_handshakes_at_the_same_time_end_no_process(
    number: int,
    cluster: Cluster,
    service: FlowEdgeProcess,
    agent: AgentProcess,
    laptop: Security,
    stranger: ssl.SSLContext,
) -> None:
    """The caller shows no certificate, or another cluster's; TLS 1.3 refuses after its part is done."""
    nobody = attacker_context(None)
    for process, context in ((service, nobody), (agent, nobody), (agent, stranger)):
        with HandshakeFlood(process.address, context, threads=8) as flood:
            flood.wait(number, HANG_S)
        print(flood.outcomes)
        assert flood.done >= number, flood.outcomes
        assert process.running
    check_serves(agent, laptop)
    assert laptop.store is not None
    refresh_revoked(laptop.store)


@pytest.mark.parametrize("number", [1_500, pytest.param(12_000, marks=pytest.mark.proof)])
def test_silent_connections_keep_nobody_out(number: int, agent: AgentProcess, laptop: Security) -> None:
    for _ in range(number // 1_500):
        with silent_connections(agent.address, 1_500, ATTACKER) as connections:
            check_serves(agent, laptop)
            await_that(lambda: count_open(connections) <= 32, "more than 32 are open", 30)
        assert agent.running
    process = psutil.Process(agent.pid)  # a busy agent closes what it has ended a little later
    await_that(lambda: process.num_fds() < 200, "200 descriptors are open", 30)
    agent.line("connections of 127.0.0.2 were ended: it had too many")


def test_few_descriptors_are_not_used_up(cluster: Cluster, laptop: Security) -> None:
    """A limit that the agent cannot raise."""
    state = cluster.member("shed", CertificateRole.AGENT)
    shed = AgentProcess(
        *("", "--host", "127.0.0.1", "--no-advertise"),
        environment={"FLOWEDGE_STATE_DIR": str(state)},
        enter=lambda command: ["prlimit", "--nofile=1024:1024", *command],
    )
    with running(shed), silent_connections(shed.address, 1_500, ATTACKER):
        for _ in range(5):
            with Client(shed.address, name="shed", security=laptop) as client:
                assert client.describe().certified_role == "agent"


def test_old_versions_of_tls_are_refused(cluster: Cluster) -> None:
    """gRPC reads its environment when it is imported, so the agent is not forked."""
    state = cluster.member("cellar", CertificateRole.AGENT)
    with members([state], logs_grpc=True) as (cellar,):
        context = attacker_context(CredentialStore.open(state).member_file)
        assert handshake(cellar.address, context) == "TLSv1.3"
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):
            handshake(cellar.address, context)


@pytest.mark.parametrize(
    ("threads", "renewals"),
    [(16, 3), *(pytest.param(64, 10, id=shard, marks=pytest.mark.proof) for shard in shards)],
)
def test_certificates_that_are_renewed_under_load(threads: int, renewals: int, tmp_path: Path) -> None:
    """The process lives, and a call that began before all renewals goes on."""
    cluster = Cluster(tmp_path, free_ports(2))
    caller = CredentialStore.open(cluster.member("laptop", CertificateRole.CLIENT))
    command = [sys.executable, "-m", "tests.cluster.renewing_server", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        address = process.stdout.readline().strip()
        own = caller.credentials
        tls = grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)
        first = process.stdout.readline().strip()
        options = [("grpc.ssl_target_name_override", first)]
        with grpc.secure_channel(address, tls, options=options) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            with HandshakeFlood(address, attacker_context(caller.member_file), threads) as flood:
                for _ in range(renewals):
                    enough = flood.done + 11 * threads
                    flood.wait(enough, HANG_S)
                    assert flood.done >= enough, flood.outcomes
                    process.stdin.write("renew\n")
                    process.stdin.flush()
                    assert process.stdout.readline() == "renewed\n"
            assert watch.is_active(), watch
            watch.cancel()
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(HANG_S) == 0
    # A renewal breaks off the handshakes under way, and on a busy machine the next of the same caller too,
    # which the replaced server took before its end.
    print(renewals, flood.outcomes)
    assert sum(flood.outcomes.values()) - flood.done <= 2 * threads * renewals, flood.outcomes


def test_two_agents_do_not_share_a_port(cluster: Cluster, agent: AgentProcess) -> None:
    """Although the port of a cluster's agent can be shared by servers of one process."""
    state = cluster.member("attic", CertificateRole.AGENT)
    port = agent.address.rpartition(":")[2]
    attic = FlowEdgeProcess(
        *("agent", "--host", "127.0.0.1", "--port", port, "--no-advertise"),
        environment={"FLOWEDGE_STATE_DIR": str(state)},
    )
    attic.start()
    try:
        attic.line(f"port {port} is in use")
        assert attic.wait() == 1
    finally:
        attic.kill()


def test_a_connection_that_says_nothing_is_ended(silent: socket.socket) -> None:
    await_that(lambda: count_open([silent]) == 0, "it is open", HANG_S)
