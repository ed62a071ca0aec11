"""One client cannot take the room of others: calls that do not end, and answers that are not read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flowedge.client import Client
from flowedge.client.assembly import release
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import CredentialStore
from flowedge.v1 import generation_pb2
from tests.cluster.clusters import Cluster, members
from tests.cluster.impostor import call_as, refusal
from tests.cluster.raw_caller import raw_caller
from tests.support.processes import AgentProcess
from tests.support.seams import set_own_security
from tests.support.stage_config import assembled

pytestmark = pytest.mark.slow
GENERATE = "/flowedge.v1.Generation/Generate"
WATCH = "/grpc.health.v1.Health/Watch"
WATCHES, CONNECTIONS, GENERATIONS = 512, 8, 64
READ_S = 2.0
TOKENS = 16


@dataclass
class Home:
    """A cluster with a pipeline of two devices, the first of which is its draft node."""

    cluster: Cluster
    draft_node: AgentProcess
    stage: AgentProcess

    def client(self, name: str, role: CertificateRole = CertificateRole.CLIENT) -> Client:
        return Client(self.draft_node.address, security=self.cluster.security(name, role))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    cluster = Cluster(tmp_path_factory.mktemp("home"), 1)  # its service is off
    states = [cluster.member("d0", CertificateRole.DRAFT_NODE), cluster.member("v1", CertificateRole.AGENT)]
    boss = cluster.security("boss", CertificateRole.ADMIN)
    with pytest.MonkeyPatch.context() as patch, members(states, deadlines={"read_s": READ_S}) as running:
        set_own_security(patch, boss)
        assembled(running)
        yield Home(cluster, *running)


def is_answered(client: Client) -> bool:
    result = client.generate("What is a river?", max_new_tokens=TOKENS, ignore_eos=True).result()
    return len(result.token_ids) == TOKENS


@pytest.mark.proof
def test_a_client_that_ends_nothing_and_reads_nothing(home: Home) -> None:
    greedy = home.cluster.member("greedy", CertificateRole.CLIENT)
    request = generation_pb2.GenerateRequest(
        prompt="?", options=json.dumps({"max_new_tokens": 2000, "ignore_eos": True})
    )
    seen = len(home.draft_node.lines)
    with home.client("honest") as honest, home.client("chief", CertificateRole.ADMIN) as chief:
        with ExitStack() as stack:
            connect = partial(raw_caller, home.draft_node.address, greedy, reply_window=0)
            attackers = [stack.enter_context(connect()) for _ in range(CONNECTIONS)]
            for number in range(WATCHES):
                attackers[number % CONNECTIONS].request(WATCH, b"")
            attacker = stack.enter_context(connect())
            generations = [
                attacker.request(GENERATE, request.SerializeToString()) for _ in range(GENERATIONS)
            ]
            home.draft_node.line("a session was opened", after=seen)
            assert chief.describe().role == "draft node"
            assert is_answered(honest)  # while the pipeline works for the attacker too
            home.draft_node.line("a session has ended", "the caller read no reply", after=seen)
            assert is_answered(chief)
            assert generations[0] not in attacker.ended  # the error waits behind the reply
            attacker.read_on(generations[0])
            assert attacker.await_end(generations[0], 20)
        assert is_answered(honest)
    refused = [line for line in home.draft_node.lines[seen:] if "refused" in line and "greedy" in line]
    assert any("Health/Watch from greedy (client)" in line for line in refused)
    assert len(refused) < 10  # not a line for each of the 576 calls


def test_calls_of_one_caller_beyond_its_share_are_refused_by_name(home: Home) -> None:
    greedy = CredentialStore.open(home.cluster.member("greedy2", CertificateRole.CLIENT)).credentials
    server = CredentialStore.open(home.cluster.directory / "d0").credentials
    with call_as(home.draft_node.address, server, greedy) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(4)]
        for watch in watches:
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        another = stub.Watch(health_pb2.HealthCheckRequest())
        refusal(lambda: next(another), grpc.StatusCode.RESOURCE_EXHAUSTED)
        watches[0].cancel()
        deadline = time.monotonic() + 20
        while True:  # the agent hears of the end soon
            again = stub.Watch(health_pb2.HealthCheckRequest())
            try:
                assert next(again).status == health_pb2.HealthCheckResponse.SERVING
                break
            except grpc.RpcError:
                assert time.monotonic() < deadline
    assert home.draft_node.line("refused grpc.health.v1.Health/Watch from greedy2 (client)")


def test_an_unread_watch_does_not_hold_up_the_agent(home: Home) -> None:
    """The status of services changes for others, though a watcher takes none."""
    sleeper = home.cluster.member("sleeper", CertificateRole.CLIENT)
    with raw_caller(home.stage.address, sleeper, reply_window=0) as attacker:
        for service in (b"", b"\n\x14flowedge.v1.Pipeline"):
            attacker.request(WATCH, service)
        time.sleep(0.5)
        reader = CredentialStore.open(home.cluster.member("watcher", CertificateRole.CLIENT)).credentials
        server = CredentialStore.open(home.cluster.directory / "v1").credentials
        with call_as(home.stage.address, server, reader) as channel:
            request = health_pb2.HealthCheckRequest(service="flowedge.v1.Pipeline")
            watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=60)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            # By the name of `boss`. The draft node comes first: it would set the pipeline up again.
            release([home.draft_node.address, home.stage.address], pipeline="")
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
