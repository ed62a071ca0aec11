"""A device that drains: running requests end or fail with an error, new requests are refused."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flowedge import Client
from flowedge.agent.operations import AGENT, GENERATION, MEASURE, PIPELINE
from flowedge.client.sync import Generation
from flowedge.core.errors import DrainingError
from flowedge.network.grpc_status import from_status
from flowedge.v1 import agent_pb2_grpc as rpc
from tests.support.processes import AgentProcess, agents, become_pipeline
from tests.support.stage_config import stage_role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WAIT_S = 60.0
TOKENS = 120  # enough to be still running when the draining agent has refused a request
PROMPT = "Tell me a long story about the sea."
OPTIONS: dict[str, Any] = {"max_new_tokens": TOKENS, "ignore_eos": True, "seed": 1, "temperature": 0.5}
EMPTY_AFTERWARDS = {"deadlines": {"drain_s": 120.0, "recovery_s": 0.0}, "limits": {"kept_rows": 0}}


def begun(client: Client, tokens: int = TOKENS) -> tuple[Generation, Iterator[Any]]:
    """A long generation, of which the first tokens are there."""
    generation = client.generate(PROMPT, **{**OPTIONS, "max_new_tokens": tokens})
    chunks = iter(generation)
    while len(generation.token_ids) < 5:
        next(chunks)
    return generation, chunks


def await_draining(agent: AgentProcess) -> None:
    """Watches the health of an agent that has been told to stop."""
    with grpc.insecure_channel(agent.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for reply in stub.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S):
            if reply.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                return
    raise AssertionError("unreachable")


def health(agent: AgentProcess, service: str) -> str:
    with grpc.insecure_channel(agent.address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        status = health_pb2_grpc.HealthStub(channel).Check(request, timeout=WAIT_S).status
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def await_health(agent: AgentProcess, service: str) -> None:
    with grpc.insecure_channel(agent.address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        for reply in health_pb2_grpc.HealthStub(channel).Watch(request, timeout=WAIT_S):
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return


def expect_metrics(d0: AgentProcess, v1: AgentProcess, statistics: dict[str, Any]) -> None:
    """After one request the metrics count what its statistics count."""
    of_draft_node, of_stage = d0.samples(), v1.samples()
    while of_stage[
        "flowedge_kv_cache_bytes"
    ]:  # it is freed behind the client's back; the test has a deadline
        of_stage = v1.samples()
    report = statistics["stages"][0]["report"]
    assert of_draft_node["flowedge_tokens_total"] == statistics["new_tokens"]
    assert of_draft_node['flowedge_sessions_ended_total{reason="length"}'] == 1
    assert of_draft_node["flowedge_time_to_first_token_seconds_count"] == 1
    accepted = statistics["counters"]["accepted_per_segment"]
    assert of_draft_node["flowedge_acceptance_length_sum"] == sum(accepted)
    assert of_draft_node['flowedge_compute_seconds_count{activity="draft"}'] > 0
    for name in ("computed", "trimmed", "wasted"):
        assert of_stage[f'flowedge_rows_total{{outcome="{name}"}}'] == report[f"rows_{name}"]
    assert of_stage['flowedge_sessions_ended_total{reason="closed"}'] == 1
    assert of_stage["flowedge_sessions"] == 0
    assert of_stage["flowedge_kv_cache_budget_bytes"] > of_stage["flowedge_weight_bytes"] > 0
    sent = of_stage['flowedge_link_bytes_total{direction="sent",lane="in_band"}']
    assert sent >= report["bytes_sent"] > 0
    assert of_stage['flowedge_link_bytes_total{direction="received",lane="express"}'] > 0
    assert 'role="stage"' in next(name for name in of_stage if name.startswith("flowedge_role_info"))


def refused_role(agent: AgentProcess) -> Exception:
    role = stage_role("other", downstream=agent.address)
    with grpc.insecure_channel(agent.address) as channel, pytest.raises(grpc.RpcError) as caught:
        list(rpc.AgentStub(channel).BecomeStage(role, timeout=WAIT_S))
    return from_status(caught.value, agent.name)


def expect_refusal(address: str, device: str) -> None:
    with Client(address, recovery_s=0) as client, pytest.raises(DrainingError, match="draining") as caught:
        client.generate("Hello.", **OPTIONS).result()
    assert caught.value.device == device


def test_running_requests_end_whole() -> None:
    with agents(["d0", "v1", "v2"], settings=EMPTY_AFTERWARDS) as (d0, v1, v2):
        assert [health(v1, service) for service in ("", AGENT, MEASURE)] == ["SERVING"] * 3
        assert health(v1, PIPELINE) == health(d0, GENERATION) == "NOT_SERVING"
        become_pipeline([d0, v1, v2])
        await_health(d0, GENERATION)
        await_health(v1, PIPELINE)
        with Client(d0.address, recovery_s=0) as client:
            whole = client.generate(PROMPT, **OPTIONS).result()
            expected = whole.token_ids
            expect_metrics(d0, v1, whole.statistics)

            generation, chunks = begun(client)
            v2.signal(signal.SIGTERM)
            await_draining(v2)
            expect_refusal(d0.address, "v2")
            assert isinstance(refused_role(v2), DrainingError)
            list(chunks)
            assert generation.token_ids == expected
            # No stage was lost on the way, so that the reports of both came back.
            assert len(generation.statistics["stages"]) == 2
            assert v2.wait(WAIT_S) == 0
            expect_refusal(d0.address, "v2")  # it is gone, and its link lost

            become_pipeline([d0, v1], pipeline="second")
            generation, chunks = begun(client)
            d0.signal(signal.SIGTERM)
            await_draining(d0)
            expect_refusal(d0.address, "d0")
            assert health(d0, GENERATION) == "NOT_SERVING"
            list(chunks)
            assert generation.token_ids == expected
        assert d0.wait(WAIT_S) == 0
        assert v1.describe().role == ""
        assert any("draining" in line and "sessions=1 seconds=120.000" in line for line in d0.lines)
        assert any("the agent has drained" in line for line in v2.lines)


def expect_hand_back(chunks: Iterator[Any], device: str) -> None:
    with pytest.raises(DrainingError, match="draining") as caught:
        list(chunks)
    assert caught.value.device == device


def test_what_does_not_end_in_time_is_handed_back_with_an_error() -> None:
    forever = {"deadlines": {"drain_s": 3600.0}}
    with (
        agents(["d0"], settings={"deadlines": {"drain_s": 0.05, "recovery_s": 0.0}}) as (d0,),
        agents(["v1", "v2"], settings=forever) as (v1, v2),
    ):
        become_pipeline([d0, v1, v2])
        with Client(d0.address, recovery_s=0) as client:
            _, chunks = begun(client, 1500)
            v1.signal(signal.SIGTERM)
            await_draining(v1)
            v1.signal(signal.SIGTERM)  # the second ends at once
            expect_hand_back(chunks, "v1")
            assert v1.wait(WAIT_S) == 0
            expect_refusal(d0.address, "v1")

            become_pipeline([d0, v2], pipeline="second")
            _, chunks = begun(client, 1500)
            d0.signal(signal.SIGTERM)
            expect_hand_back(chunks, "d0")
        assert d0.wait(WAIT_S) == 0
        assert any('handed back sessions=1 reason="told to stop at once"' in line for line in v1.lines)
        assert any('handed back sessions=1 reason="0.05 s were over"' in line for line in d0.lines)
