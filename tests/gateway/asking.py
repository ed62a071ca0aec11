"""Requests to a gateway, and what its draft node knows of them."""

from __future__ import annotations

import json
import time
from typing import Any

from flowedge.client import Client, Device
from tests.gateway.http_sockets import head

WAIT_S = 60.0  # for what has to happen
COMPLETIONS = "/v1/completions"


def body(tokens: int = 16, **changes: Any) -> dict[str, Any]:
    """Return the body of a request for an answer of just so many tokens."""
    asked = {"model": "bundled", "prompt": "def add(a, b):", "max_tokens": tokens, "ignore_eos": True}
    return {**asked, **changes}


def raw_request(tokens: int, *headers: str, **changes: Any) -> bytes:
    """Return the bytes of a request for an answer."""
    content = json.dumps(body(tokens, **changes)).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(content)}", *headers)
    return head("POST", COMPLETIONS, *lines) + content


def device_at(address: str) -> Device:
    with Client(address) as client:
        return client.describe()


def await_sessions(address: str, number: int, *, waiting: int = 0) -> None:
    """Wait until a draft node has so many open sessions, and so many requests that wait."""
    deadline = time.monotonic() + WAIT_S
    while (found := device_at(address)) and (found.sessions, found.waiting) != (number, waiting):
        assert time.monotonic() < deadline, f"{found.sessions} sessions are open, {found.waiting} wait"
        time.sleep(0.02)
