"""A draft node's links on one route: in-band to the first stage, express to every stage."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from flowedge.core.errors import DeviceLostError
from flowedge.core.messages import Message
from flowedge.live.transport.link import LinkEvents, LinkKind, OutLink

MAX_WAITING = 256  # express messages to one stage; a stage that is this far behind has the in-band copies
OpenTo: TypeAlias = Callable[[str, LinkKind, LinkEvents], Awaitable[OutLink]]
"""Opens a link to an address; raises what OutLink.open raises."""

_log = logging.getLogger(__name__)


class ExpressFault(Protocol):
    """Loses or delays express messages, so that tests can show that the output does not depend on them."""

    def delay_s(self, message: Message) -> float | None:
        """Return the seconds by which a message to one stage is late; None if it is lost."""


class RouteLinks:
    """The links of one route, which `open` opens. Express messages are sent without a guarantee.

    Attributes:
        in_band: the link to the first stage; None before `open`.
    """

    def __init__(self, fault: ExpressFault | None) -> None:
        self.in_band: OutLink | None = None
        self._fault = fault
        self._express: list[OutLink] = []
        self._queues: list[asyncio.Queue[Message]] = []
        self._senders: list[asyncio.Task[None]] = []
        self._sent_bytes: Counter[str] = Counter()

    async def open(
        self, open_to: OpenTo, stages: Sequence[str], express: LinkEvents, in_band: LinkEvents
    ) -> None:
        """Open all links, the express links first; `stages` has the stages' addresses.

        Raises what `open_to` raises.
        """
        for address in stages:
            link = await open_to(address, LinkKind.EXPRESS, express)
            waiting = asyncio.Queue[Message](MAX_WAITING)
            self._express.append(link)
            self._queues.append(waiting)
            self._senders.append(asyncio.create_task(self._send(link, waiting)))
        self.in_band = await open_to(stages[0], LinkKind.IN_BAND, in_band)

    def put_express(self, message: Message) -> None:
        """Have a message sent to every stage, without waiting."""
        for waiting in self._queues:
            delay_s = 0.0 if self._fault is None else self._fault.delay_s(message)
            if delay_s is None:
                continue
            if delay_s > 0:
                asyncio.get_running_loop().call_later(delay_s, self._offer, waiting, message)
            else:
                self._offer(waiting, message)

    def take_sent_bytes(self, session: str) -> int:
        """Return the express bytes sent for a session to all stages together, and forget them."""
        return self._sent_bytes.pop(session, 0)

    async def close(self) -> None:
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        links = [*self._express, *([self.in_band] if self.in_band is not None else [])]
        await asyncio.gather(*(link.close() for link in links))

    def _offer(self, waiting: asyncio.Queue[Message], message: Message) -> None:
        try:
            waiting.put_nowait(message)
        except asyncio.QueueFull:
            _log.debug("a stage does not keep up with the express messages")

    async def _send(self, link: OutLink, waiting: asyncio.Queue[Message]) -> None:
        while True:
            message = await waiting.get()
            try:
                sent = await link.send(message)
            except DeviceLostError:  # the link has told its owner
                return
            self._sent_bytes[getattr(message, "session", "")] += sent
