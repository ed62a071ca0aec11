"""Sending replies to a caller that may not read them."""

from __future__ import annotations

import asyncio
from typing import Any

from flowedge.core.errors import DeadlineError
from flowedge.net.grpc_handlers import Context


class UnreadReplyError(DeadlineError):
    """A caller that does not take a reply.

    Attributes:
        sending: the reply, which gRPC still holds: nothing else can be sent before the caller takes it.
    """

    def __init__(self, text: str, sending: asyncio.Future[Any]) -> None:
        super().__init__(text)
        self.sending = sending


async def send_reply(context: Context, reply: Any, read_s: float) -> None:
    """Send a reply.

    Raises:
        UnreadReplyError: when the caller does not take it within `read_s` seconds.
    """
    sending = asyncio.ensure_future(context.write(reply))
    try:
        await asyncio.wait({sending}, timeout=read_s)
    except asyncio.CancelledError:
        sending.cancel()
        raise
    if not sending.done():
        raise UnreadReplyError(f"the caller took no reply for {read_s:g} s", sending)
    sending.result()
