"""The express lane: messages from the draft node straight to every stage, as a best effort."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.core.errors import BadRequestError, DeviceLostError
from flowedge.core.messages import Message
from flowedge.live.transport.link import OutLink

FAULT_VARIABLE = "FLOWEDGE_TEST_EXPRESS"
MAX_WAITING = 256  # messages to one stage; beyond them the in-band copies have to do

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExpressFault:
    """What is done to the express lane, to test that the output does not depend on it.

    Attributes:
        kind: "none", "cut" (nothing is sent), "delay" (everything comes late, in order) or "reorder"
            (everything comes after a random delay of its own).
        delay_s: the delay, or the longest random one.
    """

    kind: str = "none"
    delay_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> ExpressFault:
        """Read "", "cut", "delay:0.05" or "reorder:0.05"; BadRequestError for anything else."""
        kind, _, seconds = (text or "none").partition(":")
        try:
            delay_s = float(seconds or 0)
        except ValueError:
            delay_s = -1.0
        if kind not in ("none", "cut", "delay", "reorder") or not 0 <= delay_s <= 60:
            raise BadRequestError(
                f"{FAULT_VARIABLE} is {text!r}; it takes cut, delay:SECONDS or reorder:SECONDS"
            )
        return cls(kind, delay_s)

    @classmethod
    def from_environment(cls) -> ExpressFault:
        """The fault that the environment variable FLOWEDGE_TEST_EXPRESS asks for; a testing option."""
        return cls.parse(os.environ.get(FAULT_VARIABLE, ""))


class ExpressLane:
    """Sends each message to every stage without ever keeping the draft node waiting."""

    def __init__(self, links: Sequence[OutLink], fault: ExpressFault) -> None:
        self._fault = fault
        self._random = random.Random(0)
        self._sent_bytes: Counter[str] = Counter()
        self._queues = [asyncio.Queue[tuple[Message, float]](MAX_WAITING) for _ in links]
        self._senders = [
            asyncio.create_task(self._send(link, waiting))
            for link, waiting in zip(links, self._queues, strict=True)
        ]

    def put(self, message: Message) -> None:
        """Send a message to every stage, when it can be."""
        for waiting in self._queues:
            match self._fault.kind:
                case "cut":
                    pass
                case "reorder":
                    delay_s = self._random.uniform(0, self._fault.delay_s)
                    asyncio.get_running_loop().call_later(delay_s, self._offer, waiting, message)
                case _:
                    self._offer(waiting, message)

    def take_sent_bytes(self, session: str) -> int:
        """The bytes sent for a session, to all stages together; they are forgotten here."""
        return self._sent_bytes.pop(session, 0)

    async def stop(self) -> None:
        """Drop what waits."""
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

    def _offer(self, waiting: asyncio.Queue[tuple[Message, float]], message: Message) -> None:
        due = asyncio.get_running_loop().time()
        if self._fault.kind == "delay":
            due += self._fault.delay_s
        try:
            waiting.put_nowait((message, due))
        except asyncio.QueueFull:
            _log.debug("a stage does not keep up with the express lane")

    async def _send(self, link: OutLink, waiting: asyncio.Queue[tuple[Message, float]]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message, due = await waiting.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            try:
                sent = await link.send(message)
            except DeviceLostError:  # the link's owner has been told
                return
            self._sent_bytes[getattr(message, "session", "")] += sent
