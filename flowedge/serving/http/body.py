"""Reading the body of a request as a whole, before any code works on it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from starlette.types import Receive

from flowedge.core.errors import DeadlineError
from flowedge.network.deadline import within
from flowedge.serving.errors import ApiError


class ClientGoneError(Exception):
    """A client that has closed its connection before its request was complete."""


async def read_body(receive: Receive, headers: Mapping[str, str], most: int, seconds: float) -> bytes:
    """Return the body of a request.

    Args:
        most: bytes.

    Raises:
        ApiError: with status 413 when the body is too large, 408 when it does not come in time.
        ClientGoneError: when the client has gone.
    """
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)
    deadline = time.monotonic() + seconds
    body = bytearray()
    while True:
        try:
            left = max(0.001, deadline - time.monotonic())
            message = await within(left, receive(), "the body did not come")
        except DeadlineError:
            raise ApiError(
                408, f"the body did not come within {seconds:g} s", code="request_timeout"
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += message.get("body", b"")
        if len(body) > most:
            raise _too_large(most)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(most: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than {most} bytes, the maximum; send less", code="request_too_large"
    )
