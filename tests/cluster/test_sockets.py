"""Descriptors of a draft node that is asked again and again for pipelines of devices that do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import CredentialStore
from flowedge.v1 import agent_pb2_grpc as rpc
from tests.cluster.clusters import Cluster, members
from tests.support.breadth import dealt_diagonally
from tests.support.processes import AgentProcess, agents
from tests.support.stage_config import draft_node_role

STAGES, CALLS, AT_ONCE = 64, 60, 20
PATIENCE_S = 0.5  # of the caller
MOST = 100  # descriptors that the agent may have more than at its start, while it is asked
LEFT = 40  # after that: libraries keep some

Caller = tuple[grpc.ChannelCredentials | None, str]


@contextlib.contextmanager
def devices(kind: str) -> Iterator[list[str]]:
    """Addresses that refuse connections, or take them and say nothing."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(STAGES):
            each = stack.enter_context(socket.socket())
            each.bind(("127.0.0.1", 0))
            if kind == "silent":
                each.listen(512)
            found.append(f"127.0.0.1:{each.getsockname()[1]}")
        yield found


@contextlib.contextmanager
def draft_node(secured: bool, directory: Path) -> Iterator[tuple[AgentProcess, Caller]]:
    """An agent that may be a draft node, and how a client calls it."""
    if not secured:
        with agents(["d0"]) as (agent,):
            yield agent, (None, "")
        return
    cluster = Cluster(directory, 1)
    with members([cluster.member("d0", CertificateRole.DRAFT_NODE)]) as (agent,):
        own = CredentialStore.open(cluster.member("laptop", CertificateRole.CLIENT)).credentials
        server = CredentialStore.open(directory / "d0").credentials
        tls = grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)
        yield agent, (tls, server.holder.dns_name)


def descriptors(agent: AgentProcess) -> int:
    return len(list(Path(f"/proc/{agent.pid}/fd").iterdir()))


def connection(agent: AgentProcess, caller: Caller) -> grpc.aio.Channel:
    """One connection for all calls."""
    tls, name = caller
    if tls is None:
        return grpc.aio.insecure_channel(agent.address)
    return grpc.aio.secure_channel(agent.address, tls, options=[("grpc.ssl_target_name_override", name)])


async def ask(channel: grpc.aio.Channel, stages: list[str], patience_s: float) -> None:
    """Ask for a pipeline, and go away when there is none in time."""
    role = draft_node_role("p", stages)
    with pytest.raises(grpc.aio.AioRpcError):
        async for _ in rpc.AgentStub(channel).BecomeDraftNode(role, timeout=patience_s):
            pass


@pytest.mark.parametrize(
    ("kind", "secured"), dealt_diagonally(("silent", "refusing"), (True, False), one_in=2)
)
def test_sockets_of_repeated_calls_are_closed_at_once(kind: str, secured: bool, tmp_path: Path) -> None:
    async def attack(agent: AgentProcess, caller: Caller, stages: list[str]) -> tuple[int, int, int]:
        async with connection(agent, caller) as channel:
            await ask(channel, stages, PATIENCE_S)
            before = peak = descriptors(agent)
            for _ in range(CALLS // AT_ONCE):
                asking = asyncio.gather(*(ask(channel, stages, PATIENCE_S) for _ in range(AT_ONCE)))
                while not asking.done():
                    peak = max(peak, descriptors(agent))
                    await asyncio.sleep(0.01)
                await asking
            await asyncio.sleep(2)
            return before, peak, descriptors(agent)

    with draft_node(secured, tmp_path) as (agent, caller), devices(kind) as stages:
        before, peak, after = asyncio.run(asyncio.wait_for(attack(agent, caller, stages), 120))  # type: ignore[arg-type]
        print(f"{CALLS} calls, {STAGES} {kind} stages: descriptors {before}, at most {peak}, then {after}")
        assert peak - before < MOST
        assert after - before < LEFT
        assert agent.running
