"""Channels from a client to an agent, and errors of calls that fail without a gRPC status."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from flowedge.cluster.tls.channels import open_channel
from flowedge.core.errors import DeviceLostError
from flowedge.network.address import checked_address
from flowedge.network.deadline import within
from flowedge.network.grpc_status import from_status
from flowedge.v1.agent_pb2_grpc import AgentStub

# An agent is on the local network, so a proxy named in the environment is not used.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # A device that comes back is called at once: gRPC's own pause grows to two minutes, and an attempt that a
    # dead cable swallowed takes it 20 s. A new client knows nothing of the failures of an earlier one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
SILENCE_S = 5.0  # a draft node that has nothing to send gives a sign of life each second


@asynccontextmanager
async def open_stub(address: str, stub: Callable[[grpc.aio.Channel], Any] = AgentStub) -> AsyncIterator[Any]:
    """Open a channel to an agent and yield a stub; a gRPC error inside is raised as a FlowEdgeError.

    Raises:
        BadRequestError: when the form of the address is not host:port.
        AccessError: when the certificate found there does not allow the call.
        DeviceLostError: when the agent cannot be reached.
    """
    async with await open_channel(checked_address(address), CHANNEL_OPTIONS) as channel:
        try:
            yield stub(channel)
        except grpc.RpcError as error:
            raise from_status(error, address) from error


async def read_replies(call: Any, silence_s: float) -> AsyncGenerator[Any, None]:
    """Yield the replies of a call until it ends; leaving the loop ends the call.

    Raises:
        DeadlineError: when there was no reply for `silence_s`.
        grpc.RpcError: when the call fails.
    """
    try:
        while (reply := await within(silence_s, call.read(), "no reply came")) is not grpc.aio.EOF:
            yield reply
    finally:
        call.cancel()


def stream_ended(address: str, awaited: str) -> DeviceLostError:
    """Return the error for a device that closed its stream before `awaited` had happened."""
    return DeviceLostError(address, f"it ended the stream before {awaited}")
