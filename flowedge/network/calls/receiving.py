"""Receiving the one request of a call: within a time, up to a size, and a few at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError, Message

from flowedge.core.errors import ProtocolError
from flowedge.network.calls.caller_order import Turns
from flowedge.network.calls.text_fields import check_texts
from flowedge.network.deadline import ProgressDeadline
from flowedge.network.grpc_handlers import Context

# gRPC would widen the window of a stream to megabytes that nobody has asked for. A larger message waits for
# one round trip more, when it is asked for; the rows of a usual segment fit.
WINDOW_BYTES = 256 << 10
SERVER_OPTIONS = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW_BYTES))
AT_ONCE = 16  # requests of all callers; each takes the memory of a message until it is whole
AT_ONCE_OF_CALLER = 4


class RequestReceiver:
    """Receives requests; a caller's next request waits while `AT_ONCE_OF_CALLER` of its requests are coming.

    Requests that may use the reserve of calls wait for each other only.
    """

    def __init__(self, receive_s: float) -> None:
        """receive_s: seconds within which a request has to be whole, waiting included."""
        self._receive_s = receive_s
        self._all = {reserved: asyncio.Semaphore(AT_ONCE) for reserved in (False, True)}
        self._turns = Turns(AT_ONCE_OF_CALLER)

    async def receive(
        self, method: str, context: Context, limit: int, key: str, *, reserved: bool = False
    ) -> bytes:
        """Return the request of a call.

        Args:
            limit: most bytes of the request.
            key: of the caller; reserved: whether the call may use the reserve.

        Raises:
            DeadlineError: when the request is not whole in time.
            ProtocolError: when there is none, or it is too large.
        """
        deadline, called = ProgressDeadline(self._receive_s), method.removeprefix("/")

        async def receive() -> Any:
            async with self._turns.of(key), self._all[reserved]:
                return await context.read()

        data = await deadline.wait(receive(), f"the request of {called} was not received")
        if data is grpc.aio.EOF or not isinstance(data, bytes):
            raise ProtocolError(f"{called} was called without a request, or with one that is too large")
        if len(data) > limit:
            raise ProtocolError(
                f"the request of {called} has {len(data)} bytes; the maximum is {limit}; shorten it"
            )
        return data


def parser_of(method: str, deserialise: Callable[[bytes], Any], limit: int) -> Callable[[bytes], Any]:
    """Return the function that turns the bytes of a method's request into a checked message.

    It raises ProtocolError for bytes that are no such message or too many, and BadRequestError for a text
    that is too long.
    """
    called = method.removeprefix("/")

    def parse(data: bytes) -> Any:
        if len(data) > limit:
            raise ProtocolError(f"a message of {called} has {len(data)} bytes; the maximum is {limit}")
        try:
            message = deserialise(data)
        except DecodeError as error:
            raise ProtocolError(f"{len(data)} bytes are not a request of {called}: {error}") from error
        if isinstance(message, Message):
            check_texts(message)
        return message

    return parse
