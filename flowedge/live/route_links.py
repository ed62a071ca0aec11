"""A draft node's links on one route: in-band to its first stage, express to every stage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flowedge.core.errors import DeviceLostError
from flowedge.core.messages import Message
from flowedge.live.express import ExpressFault, ExpressLinks
from flowedge.live.transport.link import LinkEvents, OpenLink, OutLink


@dataclass(frozen=True)
class RouteOpener:
    """The functions that open the links of a route: in-band to its first stage, express to each stage."""

    in_band: OpenLink
    express: Sequence[OpenLink]


class RouteLinks:
    """The links of one route, which `open` opens."""

    def __init__(self) -> None:
        self.in_band: OutLink | None = None
        self._links: list[OutLink] = []
        self._express: ExpressLinks | None = None

    async def open(
        self,
        opener: RouteOpener,
        on_message: Callable[[Message], None],
        on_reply: Callable[[Message], None],
        on_lost: Callable[[DeviceLostError], None],
    ) -> None:
        """Open all links, the express links first. Raises what the opener's functions raise.

        on_message: called with a stage's message on an express link; on_reply: on the in-band link.
        """
        for open_link in opener.express:
            self._links.append(await open_link(LinkEvents(on_message, on_lost)))
        self.in_band = await opener.in_band(LinkEvents(on_reply, on_lost))

    def start_express(self, fault: ExpressFault | None) -> None:
        """Begin to send express messages; `put_express` drops them before that."""
        self._express = ExpressLinks(self._links, fault)

    def put_express(self, message: Message) -> None:
        """Have a message sent to every stage."""
        if self._express is not None:
            self._express.put(message)

    def take_sent_bytes(self, session: str) -> int:
        """Return the express bytes sent for a session, and forget them."""
        return 0 if self._express is None else self._express.take_sent_bytes(session)

    async def close(self) -> None:
        """Close all links."""
        if self._express is not None:
            await self._express.stop()
        links = [*self._links, *([self.in_band] if self.in_band is not None else [])]
        await asyncio.gather(*(link.close() for link in links))
