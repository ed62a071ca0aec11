"""A client cannot learn from an agent which paths and ports exist, nor fill its log."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from flowedge.cluster.credentials.certificate_role import CertificateRole
from flowedge.cluster.credentials.credentials import Credentials, CredentialStore
from flowedge.core.log_fields import MAX_TEXT
from flowedge.network.calls.hidden_reasons import ANSWER_S
from flowedge.v1 import agent_pb2, agent_pb2_grpc, generation_pb2, weights_pb2, weights_pb2_grpc
from flowedge.version import PROTOCOL_VERSION
from tests.cluster.clusters import Cluster, members
from tests.cluster.impostor import call_as
from tests.support.free_ports import free_port
from tests.support.processes import AgentProcess

WAIT_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("home"), 1)  # its service is off


@pytest.fixture(scope="module")
def draft_node(cluster: Cluster) -> Iterator[AgentProcess]:
    with members([cluster.member("d0", CertificateRole.DRAFT_NODE)]) as (agent,):
        yield agent


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Credentials:
    return CredentialStore.open(cluster.member("laptop", CertificateRole.CLIENT)).credentials


def refusal(
    cluster: Cluster, agent: AgentProcess, caller: Credentials, **role: Any
) -> tuple[grpc.StatusCode, str, float]:
    """The status, text and seconds of a refused BecomeDraftNode."""
    server = CredentialStore.open(cluster.directory / "d0").credentials
    request = agent_pb2.DraftNodeRole(pipeline="p", protocol_version=PROTOCOL_VERSION, **role)
    started = time.monotonic()
    with call_as(agent.address, server, caller) as channel, pytest.raises(grpc.RpcError) as caught:
        list(agent_pb2_grpc.AgentStub(channel).BecomeDraftNode(request, timeout=WAIT_S))
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code(), str(caught.value.details()), time.monotonic() - started


def test_no_client_learns_which_paths_exist(
    cluster: Cluster, draft_node: AgentProcess, client: Credentials, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    models = [
        "/no/such/place",
        str(tmp_path / "empty"),
        str(tmp_path / "broken"),
        "/etc",
        "/root/.ssh",
        "o/n",
    ]
    seen = len(draft_node.lines)
    found = {
        refusal(cluster, draft_node, client, model=model, stages=["127.0.0.1:9"])[:2] for model in models
    }
    [(_, text)] = found
    assert "cannot open a model" in text
    assert "`flowedge models pull OWNER/NAME --hub`" in text
    draft_node.line(
        "refused flowedge.v1.Agent/BecomeDraftNode from laptop (client)", "/no/such/place", after=seen
    )
    boss = CredentialStore.open(cluster.member("boss", CertificateRole.ADMIN)).credentials
    _, told, _ = refusal(cluster, draft_node, boss, model=models[0], stages=["127.0.0.1:9"])
    assert models[0] in told
    _, told, _ = refusal(cluster, draft_node, boss, model="o/n", stages=["127.0.0.1:9"])
    assert "run `flowedge models pull o/n --hub`, or start its agent with --hub" in told


def test_no_client_learns_which_ports_are_open(
    cluster: Cluster, draft_node: AgentProcess, client: Credentials
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        open_port, closed_port = silent.getsockname()[1], free_port()
        answers = [
            refusal(cluster, draft_node, client, model="bundled", stages=[f"127.0.0.1:{port}"])
            for port in (open_port, closed_port)
        ]
    (code, text, seconds), (other_code, other_text, other_seconds) = answers
    assert (code, text) == (other_code, other_text)
    assert not re.search(r"\d{2,}|refused", text)  # neither the port nor what it did
    assert min(seconds, other_seconds) >= ANSWER_S


def test_only_leaders_look_for_models(
    cluster: Cluster, draft_node: AgentProcess, client: Credentials
) -> None:
    server = CredentialStore.open(cluster.directory / "d0").credentials
    with call_as(draft_node.address, server, client) as channel, pytest.raises(grpc.RpcError) as caught:
        weights_pb2_grpc.WeightsStub(channel).Look(weights_pb2.LookRequest(model="/etc"), timeout=WAIT_S)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_long_texts_do_not_reach_the_log(
    cluster: Cluster, draft_node: AgentProcess, client: Credentials
) -> None:
    """A model's name of 5 MiB, and texts of all fields that fit the request."""
    before = sum(map(len, draft_node.lines))
    for size in (5 << 20, 200_000, 2000):
        for role in ({"model": "m" * size}, {"model": "bundled", "drafter": "d" * size * 5}):
            refusal(cluster, draft_node, client, stages=["127.0.0.1:9"], **role)
    server = CredentialStore.open(cluster.directory / "d0").credentials
    with call_as(draft_node.address, server, client) as channel:
        stub: Any = channel.unary_stream("/flowedge.v1.Generation/Generate")
        requests = [
            generation_pb2.GenerateRequest(prompt="?", strategy="s" * 60_000),
            generation_pb2.GenerateRequest(prompt="?", strategy_options={"o" * 60_000: 1.0}),
            generation_pb2.GenerateRequest(prompt="?", request_id="r" * 60_000),
        ]
        for request in requests:
            with pytest.raises(grpc.RpcError) as caught:
                list(stub(request.SerializeToString(), timeout=WAIT_S))
            assert isinstance(caught.value, grpc.Call)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "has 60000 characters" in str(caught.value.details())
    assert sum(map(len, draft_node.lines)) - before < 20 * MAX_TEXT
