"""Channels from a client to an agent, and errors of calls that fail without a gRPC status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from flowedge.cluster.tls.channels import open_sync_channel
from flowedge.core.errors import DeviceLostError
from flowedge.network.address import checked_address
from flowedge.network.grpc_status import from_status
from flowedge.v1.agent_pb2_grpc import AgentStub

# An agent is on the local network, so a proxy named in the environment is not used.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
]
SILENCE_S = 5.0  # a draft node that has nothing to send gives a sign of life each second


@contextmanager
def open_stub(address: str, stub: Callable[[grpc.Channel], Any] = AgentStub) -> Iterator[Any]:
    """Open a channel to an agent and yield a stub; a gRPC error inside is raised as a FlowEdgeError.

    Raises:
        BadRequestError: when the form of the address is not host:port.
        AccessError: when the certificate found there does not allow the call.
        DeviceLostError: when the agent cannot be reached.
    """
    with open_sync_channel(checked_address(address), CHANNEL_OPTIONS) as channel:
        try:
            yield stub(channel)
        except grpc.RpcError as error:
            raise from_status(error, address) from error


def stream_ended(address: str, awaited: str) -> DeviceLostError:
    """Return the error for a device that closed its stream before `awaited` had happened."""
    return DeviceLostError(address, f"it ended the stream before {awaited}")
