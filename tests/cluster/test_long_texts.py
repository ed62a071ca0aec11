"""A client cannot have an agent look for models, nor fill its log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import Credentials, CredentialStore
from flowedge.core.log_fields import MAX_TEXT
from flowedge.v1 import agent_pb2, agent_pb2_grpc, generation_pb2, weights_pb2, weights_pb2_grpc
from flowedge.version import PROTOCOL_VERSION
from tests.cluster.clusters import Cluster, members
from tests.cluster.impostor import call_as, refusal
from tests.support.processes import AgentProcess

WAIT_S = 60


@pytest.fixture(scope="module")
def draft_node(cluster: Cluster) -> Iterator[AgentProcess]:
    with members([cluster.member("d0", CertificateRole.DRAFT_NODE)]) as (agent,):
        yield agent


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Credentials:
    return CredentialStore.open(cluster.member("laptop", CertificateRole.CLIENT)).credentials


def refuse(cluster: Cluster, agent: AgentProcess, caller: Credentials, **settings: Any) -> None:
    """Have a BecomeDraftNode refused."""
    server = CredentialStore.open(cluster.directory / "d0").credentials
    request = agent_pb2.DraftNodeRole(
        pipeline="p", stages=["127.0.0.1:9"], config=json.dumps(settings), protocol_version=PROTOCOL_VERSION
    )
    with call_as(agent.address, server, caller) as channel, pytest.raises(grpc.RpcError):
        list(agent_pb2_grpc.AgentStub(channel).BecomeDraftNode(request, timeout=WAIT_S))


def test_only_leaders_look_for_models(
    cluster: Cluster, draft_node: AgentProcess, client: Credentials
) -> None:
    server = CredentialStore.open(cluster.directory / "d0").credentials
    with call_as(draft_node.address, server, client) as channel:
        look, request = weights_pb2_grpc.WeightsStub(channel).Look, weights_pb2.LookRequest(model="/etc")
        refusal(lambda: look(request, timeout=WAIT_S), grpc.StatusCode.PERMISSION_DENIED)


def test_long_texts_do_not_reach_the_log(
    cluster: Cluster, draft_node: AgentProcess, client: Credentials
) -> None:
    """A model's name of 5 MiB, and texts of all fields that fit the request."""
    before = sum(map(len, draft_node.lines))
    for size in (5 << 20, 200_000, 2000):
        for settings in ({"model": "m" * size}, {"drafter": "d" * size * 5}):
            refuse(cluster, draft_node, client, **settings)
    server = CredentialStore.open(cluster.directory / "d0").credentials
    with call_as(draft_node.address, server, client) as channel:
        stub: Any = channel.unary_stream("/flowedge.v1.Generation/Generate")
        requests = [
            generation_pb2.GenerateRequest(prompt="?", options="o" * (5 << 17)),
            generation_pb2.GenerateRequest(prompt="?", request_id="r" * 60_000),
        ]
        for request in requests:
            answers = stub(request.SerializeToString(), timeout=WAIT_S)
            told = refusal(lambda answers=answers: list(answers), grpc.StatusCode.INVALID_ARGUMENT)  # type: ignore[misc]
            assert "characters; at most" in told
    assert sum(map(len, draft_node.lines)) - before < 20 * MAX_TEXT
