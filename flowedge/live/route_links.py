"""A draft node's links to one pipeline: in-band to its first stage, express to every stage of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from flowedge.core.errors import DeviceLostError
from flowedge.core.messages import Message
from flowedge.live.express import ExpressFault, ExpressLinks
from flowedge.live.transport.link import OutLink

OpenLink = Callable[[Callable[[Message], None], Callable[[DeviceLostError], None]], Awaitable[OutLink]]


@dataclass(frozen=True)
class RouteOpener:
    """How the links to a pipeline are opened; `express` has one for each stage."""

    in_band: OpenLink
    express: Sequence[OpenLink]


class RouteLinks:
    """The links of one route, once `open` was awaited."""

    def __init__(self) -> None:
        self.in_band: OutLink | None = None
        self._links: list[OutLink] = []
        self._express: ExpressLinks | None = None

    async def open(
        self,
        opener: RouteOpener,
        on_express: Callable[[Message], None],
        on_reply: Callable[[Message], None],
        on_lost: Callable[[DeviceLostError], None],
    ) -> None:
        """Open all links, the express ones first. Raises what opening them raises."""
        for open_link in opener.express:
            self._links.append(await open_link(on_express, on_lost))
        self.in_band = await opener.in_band(on_reply, on_lost)

    def start_express(self, fault: ExpressFault | None) -> None:
        """Have express messages taken from now on."""
        self._express = ExpressLinks(self._links, fault)

    def put_express(self, message: Message) -> None:
        """Send a message to every stage, as soon as the lane is there."""
        if self._express is not None:
            self._express.put(message)

    def take_sent_bytes(self, session: str) -> int:
        """The express bytes of a session; they are forgotten here."""
        return 0 if self._express is None else self._express.take_sent_bytes(session)

    async def close(self) -> None:
        """End the lane and all links."""
        if self._express is not None:
            await self._express.stop()
        links = [*self._links, *([self.in_band] if self.in_band is not None else [])]
        await asyncio.gather(*(link.close() for link in links))
