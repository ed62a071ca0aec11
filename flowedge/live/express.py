"""Express messages: from the draft node straight to every stage of a route, without a guarantee."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from flowedge.core.errors import DeviceLostError
from flowedge.core.messages import Message
from flowedge.live.transport.link import OutLink

MAX_WAITING = 256  # messages to one stage; a stage that is this far behind learns from the in-band copies

_log = logging.getLogger(__name__)


class ExpressFault(Protocol):
    """Loses or delays express messages, so that tests can show that the output does not depend on them."""

    def delay_s(self, message: Message) -> float | None:
        """Return the seconds by which a message to one stage is late; None if it is lost."""


class ExpressLinks:
    """The express links of one route. Sending never keeps the draft node waiting."""

    def __init__(self, links: Sequence[OutLink], fault: ExpressFault | None) -> None:
        self._fault = fault
        self._sent_bytes: Counter[str] = Counter()
        self._queues = [asyncio.Queue[Message](MAX_WAITING) for _ in links]
        self._senders = [
            asyncio.create_task(self._send(link, waiting))
            for link, waiting in zip(links, self._queues, strict=True)
        ]

    def put(self, message: Message) -> None:
        """Have a message sent to every stage."""
        for waiting in self._queues:
            delay_s = 0.0 if self._fault is None else self._fault.delay_s(message)
            if delay_s is None:
                continue
            if delay_s > 0:
                asyncio.get_running_loop().call_later(delay_s, self._offer, waiting, message)
            else:
                self._offer(waiting, message)

    def take_sent_bytes(self, session: str) -> int:
        """Return the bytes sent for a session to all stages together, and forget them."""
        return self._sent_bytes.pop(session, 0)

    async def stop(self) -> None:
        """Stop sending and drop the messages that wait."""
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

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
