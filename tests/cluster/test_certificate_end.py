"""What happens to a member's calls and connections when its certificate ends: revoked, or expired."""

from __future__ import annotations

import datetime
import queue
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import psutil
import pytest

from flowedge.cluster import certificates
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import ClusterInfo, Credentials, CredentialStore
from flowedge.cluster.member import Member
from flowedge.network.address import split_address
from flowedge.v1 import agent_pb2, measure_pb2
from flowedge.v1.agent_pb2_grpc import AgentStub
from flowedge.v1.measure_pb2_grpc import MeasureStub
from tests.cluster.clusters import Cluster, members, now
from tests.cluster.impostor import call_as, refusal
from tests.support.processes import AgentProcess

LIFE = datetime.timedelta(seconds=4)
ANSWER_S = 10
CLOSED_S = 10

pytestmark = pytest.mark.usefixtures("service")


@pytest.fixture(scope="module")
def kitchen(cluster: Cluster) -> Iterator[AgentProcess]:
    with members([cluster.member("kitchen", CertificateRole.AGENT)]) as (agent,):
        yield agent


@pytest.fixture(scope="module")
def server(cluster: Cluster, kitchen: AgentProcess) -> Credentials:
    return CredentialStore.open(cluster.directory / "kitchen").credentials


def short_lived(cluster: Cluster, name: str) -> Credentials:
    """A member whose certificate expires soon."""
    authority, key = cluster.authority, certificates.new_key()
    signing = certificates.read_key((cluster.ca / "authority" / "key.pem").read_bytes())
    member = Member(authority.id, frozenset({CertificateRole.AGENT}), name)
    certificate = certificates.issue(
        member, key.public_key(), authority.certificate, signing, now=now(), life=LIFE
    )
    info = ClusterInfo("home", (cluster.address,), cluster.port + 1)
    return Credentials(certificates.key_pem(key), certificate, authority.certificate, info)


def await_closed(agent: AgentProcess) -> None:
    """Wait until nobody is connected to the agent, although the callers' channels are open."""
    port = split_address(agent.address)[1]
    deadline = time.monotonic() + CLOSED_S
    while connected := [c for c in psutil.net_connections("tcp") if _is_from_here(c, port)]:
        assert time.monotonic() < deadline, connected
        time.sleep(0.05)


def _is_from_here(connection: Any, port: int) -> bool:
    return bool(connection.raddr) and connection.raddr.port == port and connection.status == "ESTABLISHED"


def begin_stream(channel: grpc.Channel) -> Any:
    """A stream of requests that goes on."""
    probes: queue.SimpleQueue[measure_pb2.Probe | None] = queue.SimpleQueue()
    call = MeasureStub(channel).Ping(iter(probes.get, None))
    probes.put(measure_pb2.Probe(data=b"1"))
    assert next(call).data == b"1"
    return call


def test_neither_a_stream_nor_a_connection_outlives_its_certificate(
    cluster: Cluster, kitchen: AgentProcess, server: Credentials
) -> None:
    """The handshakes were in time, and none follows on the connections."""
    with (
        call_as(kitchen.address, server, short_lived(cluster, "calling")) as calling,
        call_as(kitchen.address, server, short_lived(cluster, "brief")) as streaming,
    ):
        AgentStub(calling).Clock(agent_pb2.ClockRequest(), timeout=ANSWER_S)
        stream = begin_stream(streaming)
        told = refusal(lambda: next(stream), grpc.StatusCode.PERMISSION_DENIED)
        assert "the certificate of brief (agent) expired on" in told
        with pytest.raises(grpc.RpcError):  # its certificate has expired before
            AgentStub(calling).Clock(agent_pb2.ClockRequest(), timeout=ANSWER_S)
        await_closed(kitchen)


def test_a_peer_that_is_revoked_in_the_middle_of_a_call(
    cluster: Cluster, kitchen: AgentProcess, server: Credentials
) -> None:
    """Its call ends, its connection is closed, and it is refused on a new one."""
    caller = CredentialStore.open(cluster.member("thief", CertificateRole.AGENT)).credentials
    with call_as(kitchen.address, server, caller) as channel:
        call = begin_stream(channel)
        cluster.authority.revoke("thief", now())
        told = refusal(lambda: next(call), grpc.StatusCode.PERMISSION_DENIED)
        assert "has been revoked" in told
        await_closed(kitchen)
    kitchen.line("refused flowedge.v1.Measure/Ping", "thief (agent)", "has been revoked")
    with call_as(kitchen.address, server, caller) as channel:
        describe = partial(AgentStub(channel).Describe, agent_pb2.DescribeRequest(), timeout=ANSWER_S)
        assert "has been revoked" in refusal(describe, grpc.StatusCode.PERMISSION_DENIED)
