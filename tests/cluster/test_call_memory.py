"""Messages without their last byte: an agent holds none of a revoked caller, and few of a valid one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flowedge.client import Client
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.enrolment import join
from flowedge.cluster.join_token import JoinToken
from flowedge.core.errors import FlowEdgeError
from tests.cluster.clusters import Cluster, members, now
from tests.cluster.raw_caller import half_send_many, raw_caller
from tests.support.processes import AgentProcess
from tests.support.waiting import await_that

MIB = 1 << 20
MESSAGE = 60 * MIB
PATIENCE_S = 1.0
RECEIVE_S = 2.0  # of an agent
HANG_S = 120.0
METHODS = ("/flowedge.v1.Agent/BecomeDraftNode", "/flowedge.v1.Generation/Generate")

pytestmark = pytest.mark.usefixtures("service")


@pytest.fixture
def kitchen(cluster: Cluster, tmp_path: Path) -> Iterator[AgentProcess]:
    state = cluster.member(tmp_path.name[-20:], CertificateRole.AGENT)
    with members([state], deadlines={"receive_s": RECEIVE_S}) as (agent,):
        yield agent


def resident_mib(agent: AgentProcess) -> int:
    return int(psutil.Process(agent.pid).memory_info().rss) // MIB


def test_half_sent_messages_of_a_revoked_caller(cluster: Cluster, kitchen: AgentProcess) -> None:
    thief = cluster.member("thief", CertificateRole.CLIENT)
    cluster.authority.revoke("thief", now())
    seen = len(kitchen.lines)
    with raw_caller(kitchen.address, thief) as probe:  # until the agent has the list
        while not any("has been revoked" in line for line in kitchen.lines[seen:]):
            probe.request("/flowedge.v1.Agent/Clock", b"")
            probe.half_send(probe.call("/flowedge.v1.Agent/Clock"), 1, 0.1)
    before = resident_mib(kitchen)
    for calls in (20, 200):
        with raw_caller(kitchen.address, thief) as attacker:
            half_send_many(attacker, METHODS[0], calls, MESSAGE, PATIENCE_S)
            assert resident_mib(kitchen) < before + 60
    log = [line for line in kitchen.lines[seen:] if "refused flowedge.v1.Agent/BecomeDraftNode" in line]
    assert len(log) == 1  # and not a line for each call
    assert "thief (client)" in log[0]


def test_half_sent_messages_of_a_valid_client(cluster: Cluster, kitchen: AgentProcess) -> None:
    """It is a member, so its requests are received: a few at a time, and each within a deadline."""
    guest = cluster.member("guest", CertificateRole.CLIENT)
    before = resident_mib(kitchen)
    with raw_caller(kitchen.address, guest) as attacker:
        for method in METHODS:
            assert half_send_many(attacker, method, 40, MIB, PATIENCE_S) > MIB
        assert resident_mib(kitchen) < before + 60
        with Client(kitchen.address, security=cluster.security("honest", CertificateRole.CLIENT)) as client:
            assert client.describe().role == "idle"
        everything = 40 * len(METHODS)
        await_that(lambda: len(attacker.ended) == everything, "a request may take for ever", HANG_S)
    assert kitchen.line("refused flowedge.v1.Agent/BecomeDraftNode from guest (client)")


@pytest.mark.proof  # the service's deadline is 10 s
def test_half_sent_requests_at_the_enrolment_service(cluster: Cluster, tmp_path: Path) -> None:
    """Anyone may call it. Half-sent requests end by their deadline, so a device joins meanwhile."""
    with raw_caller(cluster.address, None) as attacker:
        half_send_many(attacker, "/flowedge.v1.Enrolment/Join", 100, MESSAGE, PATIENCE_S)
        half_send_many(attacker, "/flowedge.v1.Enrolment/Join", 100, 8 << 10, PATIENCE_S)
        deadline = time.monotonic() + HANG_S
        while True:
            try:
                joined = join(JoinToken.decode(cluster.token()), "attic", "", tmp_path / "attic")
                break
            except FlowEdgeError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
    assert joined.credentials.holder.member.name == "attic"
