"""Sending replies to a caller that may not read them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from flowedge.core.errors import DeadlineError
from flowedge.network.grpc_handlers import Context

CHECK_S = 0.5  # between two questions whether too much waits


class ReplyNotReadError(DeadlineError):
    """A caller that does not take a reply.

    Attributes:
        sending: the reply, which gRPC still holds: nothing else can be sent before the caller takes it.
    """

    def __init__(self, text: str, sending: asyncio.Future[Any]) -> None:
        super().__init__(text)
        self.sending = sending


async def send_reply(
    context: Context, reply: Any, read_s: float, is_full: Callable[[], bool] = lambda: False
) -> None:
    """Send a reply.

    Args:
        read_s: seconds within which the caller has to take it.
        is_full: returns whether so much waits behind the reply that the caller is given up earlier.

    Raises:
        UnreadReplyError: when the caller does not take the reply.
    """
    sending = asyncio.ensure_future(context.write(reply))
    deadline = time.monotonic() + read_s
    try:
        while not sending.done() and (left := deadline - time.monotonic()) > 0 and not is_full():
            await asyncio.wait({sending}, timeout=min(left, CHECK_S))
    except asyncio.CancelledError:
        sending.cancel()
        raise
    if not sending.done():
        why = f"for {read_s:g} s" if time.monotonic() >= deadline else "while too many others were waiting"
        raise ReplyNotReadError(f"the caller read no reply {why}", sending)
    sending.result()
