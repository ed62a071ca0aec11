"""How a client reaches an agent."""

from __future__ import annotations

from typing import Any

from flowedge.net.address import split_address

# An agent is on the local network: a proxy of the environment has no part in it.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
]
# A draft node sends a sign of life each second while it has nothing else to send.
SILENCE_S = 5.0


def check_address(address: str) -> str:
    """The address itself; BadRequestError when it is not of the form host:port."""
    split_address(address)
    return address
