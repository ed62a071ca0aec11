"""Servers and callers of an attacker, who uses gRPC as it comes and none of our checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from flowedge.cluster.credentials import Credentials, CredentialStore
from flowedge.v1 import agent_pb2, agent_pb2_grpc, cluster_pb2, cluster_pb2_grpc


class Impostor(agent_pb2_grpc.AgentServicer, cluster_pb2_grpc.EnrolmentServicer):
    """A server that answers as an agent and as an enrolment service, and keeps the requests."""

    def __init__(self, authority_pem: bytes) -> None:
        self.authority_pem = authority_pem
        self.heard: list[Any] = []

    def Describe(self, request: Any, context: Any) -> agent_pb2.Device:  # noqa: N802
        self.heard.append(request)
        return agent_pb2.Device(id="0" * 16, name="kitchen", protocol_version=1)

    def Authority(self, request: Any, context: Any) -> cluster_pb2.AuthorityReply:  # noqa: N802
        return cluster_pb2.AuthorityReply(certificate=self.authority_pem)

    def Join(self, request: Any, context: Any) -> cluster_pb2.Membership:  # noqa: N802
        self.heard.append(request)
        return cluster_pb2.Membership()


@contextmanager
def impostor(
    key_pem: bytes | None, certificate_pem: bytes, authority_pem: bytes
) -> Iterator[tuple[Impostor, str]]:
    """A server with this certificate, which claims the CA; without a key it speaks plaintext."""
    servicer = Impostor(authority_pem)
    server = grpc.server(ThreadPoolExecutor(4))
    agent_pb2_grpc.add_AgentServicer_to_server(servicer, server)
    cluster_pb2_grpc.add_EnrolmentServicer_to_server(servicer, server)
    if key_pem is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([(key_pem, certificate_pem)])
        )
    server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        server.stop(grace=0).wait(5)


def posing_as(state: Path) -> Any:
    """An impostor with the key and certificate of a member."""
    credentials = CredentialStore.open(state).credentials
    return impostor(credentials.key_pem, credentials.certificate_pem, credentials.authority_pem)


@contextmanager
def call_as(
    address: str, server: Credentials, caller: Credentials | None, *, shown: bool = True
) -> Iterator[grpc.Channel]:
    """A channel to the agent with credentials, by a caller with others, which it shows or not."""
    own = (caller.key_pem, caller.certificate_pem) if caller is not None and shown else (None, None)
    credentials = grpc.ssl_channel_credentials(server.authority_pem, *own)
    options = [("grpc.ssl_target_name_override", server.holder.dns_name)]
    with grpc.secure_channel(address, credentials, options=options) as channel:
        yield channel


def refusal(attempt: Callable[[], object], code: grpc.StatusCode) -> str:
    """Hold that a call ends with a status; return what the caller is told."""
    with pytest.raises(grpc.RpcError) as caught:
        attempt()
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is code, caught.value.details()
    return str(caught.value.details())
