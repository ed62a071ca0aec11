"""Members of the cluster that are no part of a pipeline: they cannot join, stop or take over the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import pytest

from flowedge.client import Client
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import Credentials, CredentialStore
from flowedge.cluster.process import Security
from flowedge.cluster.tls.channels import open_channel
from flowedge.core.errors import AccessError
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.v1.pipeline_pb2 import LinkRequest
from tests.cluster.clusters import Cluster, members
from tests.cluster.impostor import call_as, refusal
from tests.support.processes import AgentProcess
from tests.support.seams import set_own_security
from tests.support.stage_config import assembled, draft_node_role, stage_role

ANSWER_S = 10
denied = partial(refusal, code=grpc.StatusCode.PERMISSION_DENIED)


@dataclass
class Home:
    """A cluster with a pipeline of d0, v1 and v2, and members that are no part of it."""

    cluster: Cluster
    agents: list[AgentProcess]
    pipeline: str  # its id, which no attacker should know: these attackers have been told
    laptop: Security

    def credentials(self, name: str) -> Credentials:
        return CredentialStore.open(self.cluster.directory / name).credentials

    def caller(self, name: str, role: CertificateRole) -> Credentials:
        """The credentials of a member, which is made at its first use."""
        if not (self.cluster.directory / name).exists():
            self.cluster.member(name, role)
        return self.credentials(name)

    @contextmanager
    def attack(self, caller: Credentials, name: str) -> Iterator[grpc.Channel]:
        """A channel of the attacker to the device of this name."""
        agent = self.agents[["d0", "v1", "v2"].index(name)]
        with call_as(agent.address, self.credentials(name), caller) as channel:
            yield channel

    def answers(self) -> None:
        """Check that the pipeline serves a request."""
        with Client(self.agents[0].address, security=self.laptop) as client:
            assert client.generate("Tell me a story.", max_new_tokens=6).result().token_ids


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    cluster = Cluster(tmp_path_factory.mktemp("home"), 1)  # its service is off
    states = [
        cluster.member("d0", CertificateRole.DRAFT_NODE),
        *(cluster.member(name, CertificateRole.AGENT) for name in ("v1", "v2")),
    ]
    laptop = cluster.security("laptop", CertificateRole.CLIENT)
    with members(states) as agents, pytest.MonkeyPatch.context() as patch:
        set_own_security(patch, laptop)
        yield Home(cluster, agents, assembled(agents), laptop)


def stream(channel: grpc.Channel, lane: str, pipeline: str, route: int = 0) -> None:
    """Open a link of the Pipeline service, and read what comes until it ends."""
    opened: Any = channel.unary_stream(f"/flowedge.v1.Pipeline/{lane}")
    request = LinkRequest(pipeline=pipeline, route=route).SerializeToString()
    for _ in opened(request, timeout=ANSWER_S):
        pass


def test_another_agent_opens_no_in_band_stream(home: Home) -> None:
    """To a stage, and in the place of the last stage."""
    garage = home.caller("garage", CertificateRole.AGENT)
    for device in ("v1", "v2", "d0"):
        with home.attack(garage, device) as channel:
            told = denied(lambda channel=channel: stream(channel, "InBand", home.pipeline))
            assert home.pipeline not in told
    home.agents[1].line("a stream of garage was refused", "is not the device before v1")
    home.answers()


def test_a_stage_sends_on_to_its_neighbour_only(home: Home) -> None:
    """V1 is a member of the pipeline, but not the last stage; nor is V2 in front of V1."""
    for attacker, device in (("v1", "d0"), ("v2", "v1"), ("v2", "v2")):
        with home.attack(home.credentials(attacker), device) as channel:
            denied(lambda channel=channel: stream(channel, "InBand", home.pipeline))
    home.answers()


def test_another_draft_node_takes_nothing_over(home: Home) -> None:
    """It opens an express stream, whose end would end the pipeline, gives roles, and releases."""
    rival = home.caller("rival", CertificateRole.DRAFT_NODE)
    rival_uri = rival.holder.member.uri
    role = stage_role(
        home.pipeline,
        downstream=home.agents[0].address,
        members=pb.PipelineMembers(upstream=rival_uri, draft_node=rival_uri, downstream=rival_uri),
    )
    for device in ("v1", "v2"):
        with home.attack(rival, device) as channel:
            agent = rpc.AgentStub(channel)
            denied(lambda channel=channel: stream(channel, "Express", home.pipeline))
            denied(lambda agent=agent: list(agent.BecomeStage(role, timeout=ANSWER_S)))
            for pipeline in ("", home.pipeline):
                request = pb.ReleaseRequest(pipeline=pipeline)
                denied(lambda agent=agent, request=request: agent.Release(request, timeout=ANSWER_S))
    home.answers()


def test_another_client_replaces_no_pipeline(home: Home) -> None:
    """BecomeDraftNode of the same id would stop the pipeline first."""
    guest = home.caller("guest", CertificateRole.CLIENT)
    role = draft_node_role(home.pipeline, [home.agents[1].address])
    with home.attack(guest, "d0") as channel:
        denied(lambda: list(rpc.AgentStub(channel).BecomeDraftNode(role, timeout=ANSWER_S)))
    home.answers()


def test_an_address_is_not_a_name(home: Home) -> None:
    """Another member has taken over the address of the next stage, or of a stage towards the draft node."""
    d0, v1, v2 = (home.credentials(name) for name in ("d0", "v1", "v2"))
    uri = {each.holder.member.name: each.holder.member.uri for each in (d0, v1, v2)}
    with members([home.cluster.member("v3", CertificateRole.AGENT)]) as (spare,):
        role = stage_role(
            "another",
            downstream=home.agents[1].address,
            members=pb.PipelineMembers(upstream=uri["d0"], draft_node=uri["d0"], downstream=uri["v2"]),
        )
        with call_as(spare.address, home.credentials("v3"), d0) as channel:
            told = denied(lambda: list(rpc.AgentStub(channel).BecomeStage(role, timeout=60)))
        assert "it is v1 (agent), not the expected" in told
    opening = open_channel(home.agents[1].address, [], member=uri["v2"], security=home.laptop)
    with pytest.raises(AccessError, match=r"it is v1 \(agent\), not the expected"):
        asyncio.run(opening)  # type: ignore[arg-type]
    home.answers()


def test_ids_are_told_to_nobody(home: Home) -> None:
    """What Describe tells groups devices, and opens no stream."""
    garage = home.caller("garage", CertificateRole.AGENT)
    labels = set()
    for device in ("d0", "v1", "v2"):
        with home.attack(garage, device) as channel:
            described = rpc.AgentStub(channel).Describe(pb.DescribeRequest(), timeout=ANSWER_S)
        assert home.pipeline not in str(described)
        labels.add(described.pipeline)
    (label,) = labels
    assert len(label) == 12
    rival = home.caller("rival", CertificateRole.DRAFT_NODE)
    with home.attack(rival, "v1") as channel, pytest.raises(grpc.RpcError) as caught:
        list(rpc.AgentStub(channel).BecomeStage(stage_role("other"), timeout=ANSWER_S))
    assert isinstance(caught.value, grpc.Call)
    assert f"part of pipeline {label}" in str(caught.value.details())
    assert home.pipeline not in str(caught.value.details())
    assert not any(home.pipeline in line for agent in home.agents for line in agent.lines)


def test_refusals_do_not_fill_the_log(home: Home) -> None:
    prowler = home.caller("prowler", CertificateRole.AGENT)
    with home.attack(prowler, "v2") as channel:
        for _ in range(50):
            denied(lambda: stream(channel, "InBand", home.pipeline))
    home.agents[2].line("a stream of prowler was refused")
    lines = [line for line in home.agents[2].lines if "a stream of prowler was refused" in line]
    assert len(lines) == 1
