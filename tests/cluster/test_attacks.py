"""Attacks on a cluster of real processes over real sockets: each is refused, and the log says why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from flowedge.cli.main import run
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.client.channel import CHANNEL_OPTIONS
from flowedge.cluster.authority import Authority
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import Credentials, CredentialStore
from flowedge.cluster.enrolment import refresh_credentials, refresh_revoked
from flowedge.cluster.process import Security
from flowedge.cluster.tls.channels import options_for, tls_for
from flowedge.cluster.tls.peer_verification import VerifiedPeer
from flowedge.core.errors import AccessError, DeviceLostError
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.advertiser import Advertiser
from flowedge.discovery.settings import DiscoverySettings
from flowedge.v1 import agent_pb2, agent_pb2_grpc, generation_pb2, generation_pb2_grpc
from flowedge.version import PROTOCOL_VERSION
from tests.cluster.clusters import OLD, Cluster, members, now
from tests.cluster.impostor import call_as, impostor, posing_as, refusal
from tests.support.processes import AgentProcess
from tests.support.seams import set_own_security

HANDSHAKE = "Handshake failed"
ANSWER_S = 10

pytestmark = pytest.mark.usefixtures("service")


@pytest.fixture(scope="module")
def kitchen(cluster: Cluster) -> Iterator[AgentProcess]:
    """An agent; its certificate is old enough to be renewed at once."""
    state = cluster.member("kitchen", CertificateRole.AGENT, now() - OLD * 0.4)
    with members([state], logs_grpc=True) as (agent,):
        yield agent


@pytest.fixture
def own_credentials(cluster: Cluster) -> Credentials:
    """The credentials that the agent has now."""
    return CredentialStore.open(cluster.directory / "kitchen").credentials


@pytest.fixture
def stranger(tmp_path: Path) -> Cluster:
    """Another cluster of the same name."""
    return Cluster(tmp_path, 1)


def describe(channel: grpc.Channel) -> agent_pb2.Device:
    device: agent_pb2.Device = agent_pb2_grpc.AgentStub(channel).Describe(
        agent_pb2.DescribeRequest(), timeout=ANSWER_S
    )
    return device


def frames(channel: grpc.Channel, lane: str) -> Any:
    """A stream of the Pipeline service."""
    stream: Any = channel.unary_stream(f"/flowedge.v1.Pipeline/{lane}")
    return stream(b"", timeout=ANSWER_S)


def refused(
    agent: AgentProcess, server: Credentials, caller: Credentials | None, code: grpc.StatusCode
) -> str:
    """The details of the error that a call ends with."""
    with call_as(agent.address, server, caller) as channel:
        return refusal(lambda: describe(channel), code)


def test_a_running_agent_renews_its_certificate_and_serves_on(
    cluster: Cluster, kitchen: AgentProcess
) -> None:
    kitchen.line("the certificate was renewed until")
    kitchen.line("new connections get the renewed certificate")
    issued = [c for c in cluster.authority.certificates() if c.name == "kitchen"]
    assert len(issued) == 2
    store = CredentialStore.open(cluster.directory / "kitchen")
    assert store.credentials.holder.serial == issued[-1].serial
    with Client(
        kitchen.address, name="kitchen", security=cluster.security("reader", CertificateRole.CLIENT)
    ) as client:
        assert client.describe().certified_role == "agent"


def test_a_peer_without_a_certificate(kitchen: AgentProcess, own_credentials: Credentials) -> None:
    seen = len(kitchen.lines)
    refused(kitchen, own_credentials, None, grpc.StatusCode.UNAVAILABLE)
    kitchen.line(HANDSHAKE, "PEER_DID_NOT_RETURN_A_CERTIFICATE", after=seen)


def test_a_peer_in_plaintext(kitchen: AgentProcess) -> None:
    seen = len(kitchen.lines)
    with grpc.insecure_channel(kitchen.address) as channel, pytest.raises(grpc.RpcError):
        describe(channel)
    kitchen.line(HANDSHAKE, "WRONG_VERSION_NUMBER", after=seen)
    with (
        Client(kitchen.address, security=Security(None)) as client,
        pytest.raises(DeviceLostError, match=r"add this machine to it first \(flowedge join\)"),
    ):
        client.describe()


def test_a_peer_of_another_cluster(
    kitchen: AgentProcess, own_credentials: Credentials, stranger: Cluster
) -> None:
    seen = len(kitchen.lines)
    caller = CredentialStore.open(stranger.member("admin2", CertificateRole.ADMIN)).credentials
    refused(kitchen, own_credentials, caller, grpc.StatusCode.UNAVAILABLE)
    kitchen.line(HANDSHAKE, "CERTIFICATE_VERIFY_FAILED", "issuer", after=seen)


def test_a_peer_whose_certificate_has_expired(
    cluster: Cluster, kitchen: AgentProcess, own_credentials: Credentials
) -> None:
    seen = len(kitchen.lines)
    old = cluster.security("old", CertificateRole.ADMIN, now() - OLD / 2)
    assert old.store is not None
    refused(kitchen, own_credentials, old.store.credentials, grpc.StatusCode.UNAVAILABLE)
    kitchen.line(HANDSHAKE, "certificate has expired", after=seen)
    with Client(kitchen.address, security=old) as client, pytest.raises(AccessError, match="join again"):
        client.describe()


def test_a_peer_with_the_wrong_role(
    cluster: Cluster, kitchen: AgentProcess, own_credentials: Credentials
) -> None:
    """A client gives no stage roles, an agent asks nothing, and neither sends rows out of turn."""
    client = CredentialStore.open(cluster.member("laptop", CertificateRole.CLIENT)).credentials
    agent = CredentialStore.open(cluster.member("garage", CertificateRole.AGENT)).credentials
    attempts: list[tuple[Credentials, str, Callable[[grpc.Channel], object]]] = [
        (
            client,
            "flowedge.v1.Agent/BecomeStage",
            lambda c: list(agent_pb2_grpc.AgentStub(c).BecomeStage(agent_pb2.StageRole(), timeout=ANSWER_S)),
        ),
        (
            agent,
            "flowedge.v1.Generation/Generate",
            lambda c: list(
                generation_pb2_grpc.GenerationStub(c).Generate(
                    generation_pb2.GenerateRequest(prompt="?"), timeout=ANSWER_S
                )
            ),
        ),
        (client, "flowedge.v1.Pipeline/InBand", lambda c: list(frames(c, "InBand"))),
        (agent, "flowedge.v1.Pipeline/Express", lambda c: list(frames(c, "Express"))),
    ]
    for caller, method, attempt in attempts:
        with call_as(kitchen.address, own_credentials, caller) as channel:
            refusal(partial(attempt, channel), grpc.StatusCode.PERMISSION_DENIED)
        kitchen.line(f"refused {method} from", f"{caller.holder.member} may not call")


def test_an_agent_may_not_lead(
    cluster: Cluster, kitchen: AgentProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate would not let it give roles to others."""
    set_own_security(monkeypatch, cluster.security("boss", CertificateRole.ADMIN))
    with pytest.raises(
        AccessError,
        match=r"for kitchen \(agent\), so it cannot be a draft node; run .*--role agent,draft-node",
    ):
        assemble(PipelineSpec(draft_node=kitchen.address, stages=("127.0.0.1:9",)), lambda *_: None)


@pytest.fixture
def reader(cluster: Cluster) -> Security:
    """A client of the cluster, whose machine has the latest list."""
    state = cluster.directory / "reader2"
    store = CredentialStore.open(state) if state.exists() else None
    return Security(store) if store else cluster.security("reader2", CertificateRole.CLIENT)


def refuses(
    reader: Security, address: str, reason: str, log: pytest.LogCaptureFixture, name: str | None = None
) -> None:
    """Check that the client refuses to speak to the server at an address, with a reason."""
    log.clear()
    with Client(address, name=name, security=reader) as client, pytest.raises(AccessError, match=reason):
        client.describe()
    assert f"refused to speak to {address}" in log.text


def test_impostors_are_told_nothing(
    cluster: Cluster, stranger: Cluster, reader: Security, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever answers at an address with another certificate than a valid device's, a proxy's for example."""
    cases = [
        (stranger.member("kitchen", CertificateRole.AGENT), f"cluster {stranger.authority.id}, not by"),
        (cluster.member("ruin", CertificateRole.AGENT, now() - OLD / 2), "expired"),
        (cluster.member("visitor", CertificateRole.CLIENT), "not a device that serves"),
        (cluster.member("stolen", CertificateRole.AGENT), "has been revoked"),
    ]
    cluster.authority.revoke("stolen", now())
    assert reader.store is not None
    assert refresh_revoked(reader.store)
    for state, reason in cases:
        with posing_as(state) as (servicer, address):
            refuses(reader, address, reason, caplog)
        assert servicer.heard == []
    with impostor(None, b"", b"") as (servicer, address):
        refuses(reader, address, "does not speak TLS", caplog)
    assert servicer.heard == []


def test_a_forged_verification_is_worth_nothing(
    cluster: Cluster, own_credentials: Credentials, reader: Security
) -> None:
    """A proxy shows the real agent's certificate first and then its own: gRPC demands the very same one."""
    assert reader.store is not None
    other = cluster.member("attic", CertificateRole.AGENT)  # a valid agent, but not the one that was verified
    peer = VerifiedPeer(own_credentials.holder, reader.store.credentials)
    with posing_as(other) as (servicer, address):
        options = options_for(peer, CHANNEL_OPTIONS)
        with (
            grpc.secure_channel(address, tls_for(peer), options=options) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            describe(channel)
    assert "Hostname Verification" in str(caught.value)
    assert servicer.heard == []


def test_advertisements_that_lie(
    cluster: Cluster,
    kitchen: AgentProcess,
    stranger: Cluster,
    reader: Security,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Real multicast: one names another agent's address as its own, one a stranger's, one another cluster."""
    set_own_security(monkeypatch, None)
    assert reader.store is not None

    async def look(foreign_address: str) -> int:
        lies = [
            record("cellar", "1", kitchen.address, cluster.authority.id),
            record("kitchen", "2", foreign_address, cluster.authority.id),
            record("neighbour", "3", foreign_address, stranger.authority.id),
        ]
        advertisers = [Advertiser(lie, DiscoverySettings()) for lie in lies]
        for advertiser in advertisers:
            await advertiser.start()
        try:
            options = ["--json", "--timeout", "2", "--cluster-dir", str(cluster.directory / "reader2")]
            return await asyncio.to_thread(run, ["devices", *options])
        finally:
            for advertiser in advertisers:
                await advertiser.stop()

    with (
        posing_as(stranger.member("kitchen", CertificateRole.AGENT)) as (servicer, address),
        caplog.at_level(logging.WARNING),
    ):
        assert asyncio.run(look(address)) == 0
    assert servicer.heard == []
    shown = capsys.readouterr().out
    assert "it is kitchen, not cellar" in shown
    assert f"cluster {stranger.authority.id}, not by {cluster.authority.id}" in shown
    assert f"neighbour belongs to cluster {stranger.authority.id}" in shown
    assert f"refused to speak to {kitchen.address}: it is kitchen, not cellar" in caplog.text
    assert f"refused to speak to {address}" in caplog.text


def record(name: str, digit: str, address: str, cluster: str) -> AdvertisedDevice:
    return AdvertisedDevice(
        name, digit * 16, address, "test", 1 << 30, PROTOCOL_VERSION, "0.1.0", cluster=cluster
    )


def test_a_command_learns_who_was_revoked(cluster: Cluster) -> None:
    """A laptop that was off, and whose certificate is due, starts with an old list."""
    old = cluster.security("laptop2", CertificateRole.CLIENT, now() - OLD * 0.4)
    lost = cluster.security("lost", CertificateRole.AGENT)
    assert old.store is not None and lost.store is not None
    cluster.authority.revoke("lost", now())
    serial = old.store.credentials.holder.serial
    refresh_credentials(old.store, now())
    with pytest.raises(AccessError, match="has been revoked"):
        old.store.revoked.check(lost.store.credentials.holder)
    assert CredentialStore.open(cluster.directory / "laptop2").credentials.holder.serial != serial


def test_the_cas_directory_alone_makes_members(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="no cluster's CA"):
        Authority.open(tmp_path)
