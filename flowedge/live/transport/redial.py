"""Further connections of a link: attempts at the same time, the first of which takes the link up."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from flowedge.core.errors import AccessError, DeadlineError, ProtocolError
from flowedge.live.transport.connecting import resume
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.network.deadline import within

TAKE_UP_S = 1.0  # for the peer to take the link up by a connection

_log = logging.getLogger(__name__)


class Attempts:
    """Connections that are being made. One may wait for its next packet when a new one would be there."""

    def __init__(self, dial: Callable[[], Awaitable[socket.socket]]) -> None:
        self._dial = dial
        self._running: set[asyncio.Future[socket.socket]] = set()

    async def next(self, seconds: float) -> socket.socket | None:
        """Begin an attempt; return a connection that is made within some seconds, None if there is none."""
        self._running.add(asyncio.ensure_future(self._dial()))
        until = time.monotonic() + seconds
        while self._running and (left := until - time.monotonic()) > 0:
            done, self._running = await asyncio.wait(
                self._running, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            for error in filter(None, (each.exception() for each in done)):
                _log.debug("a further connection was not made: %s", error)
            made = [each.result() for each in done if each.exception() is None]
            for superfluous in made[1:]:
                superfluous.close()
            if made:
                return made[0]
        await asyncio.sleep(until - time.monotonic())  # all have failed
        return None

    async def close(self) -> None:
        """End the attempts, and the connections that were made meanwhile."""
        for each in self._running:
            each.cancel()
        for found in await asyncio.gather(*self._running, return_exceptions=True):
            if isinstance(found, socket.socket):
                found.close()


@dataclass(frozen=True)
class Redial:
    """How a link makes further connections.

    Attributes:
        dial: makes a connection to the peer on which nothing has been sent; raises OSError and AccessError.
        token: by which the peer takes the link up; empty if it does not.
    """

    dial: Callable[[], Awaitable[socket.socket]]
    token: bytes

    @asynccontextmanager
    async def dialling(self) -> AsyncIterator[Attempts]:
        """Yield attempts, which end with the context."""
        attempts = Attempts(self.dial)
        try:
            yield attempts
        finally:
            await attempts.close()

    async def take_up(self, connection: LinkConnection, connected: socket.socket) -> bool:
        """Have a link go on by a connection that was made; return whether it does."""
        try:
            received = connection.detach()
            count = await within(TAKE_UP_S, resume(connected, self.token, received), "no answer came")
            connection.attach(connected, count)
        except (OSError, AccessError, DeadlineError, ProtocolError) as error:
            connected.close()
            _log.debug("a link was not taken up: %s", error)
            return False
        except BaseException:
            connected.close()
            raise
        return True
