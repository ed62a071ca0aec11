"""A draft node's links on one route: in-band to the first stage, express to every stage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from flowedge.core.errors import DeviceLostError
from flowedge.core.messages import Message
from flowedge.live.in_band_sender import InBandSender
from flowedge.live.transport.frame_link import FrameLink, LinkEvents
from flowedge.live.work_timing import WorkTiming
from flowedge.protocol import wire
from flowedge.protocol.link_kind import LinkKind

MAX_WAITING = 256  # express messages to one stage; a stage that is this far behind has the in-band copies
OpenTo: TypeAlias = Callable[[str, LinkKind, LinkEvents], Awaitable[FrameLink]]
"""Opens a link to an address; raises what FrameLink.open raises."""

_log = logging.getLogger(__name__)


class RouteLinks:
    """The links of one route, which `open` opens. Express messages are sent without a guarantee.

    Attributes:
        in_band: the sender to the first stage; it has no link before `open`.
    """

    def __init__(self, timing: WorkTiming, in_band: InBandSender) -> None:
        self.in_band = in_band
        self._timing = timing
        self._express: list[FrameLink] = []
        self._sent_bytes: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()

    async def open(
        self, open_to: OpenTo, stages: Sequence[str], express: LinkEvents, in_band: LinkEvents
    ) -> None:
        """Open all links, the express links first; `stages` has the stages' addresses.

        Raises what `open_to` raises.
        """
        for address in stages:
            self._express.append(await open_to(address, LinkKind.EXPRESS, express))
        self.in_band.link = await open_to(stages[0], LinkKind.IN_BAND, in_band)

    def put_express(self, message: Message) -> None:
        """Send a message to every stage, without waiting. May be called in any thread."""
        frame = wire.encode(message)
        session = getattr(message, "session", "")
        for link in self._express:
            delay_s = self._timing.express_delay_s(message)
            if delay_s is None:
                continue
            if delay_s > 0:
                self._loop.call_soon_threadsafe(
                    self._loop.call_later, delay_s, self._offer, link, session, frame
                )
            else:
                self._offer(link, session, frame)

    def take_sent_bytes(self, session: str) -> int:
        """Return the express bytes sent for a session to all stages together, and forget them."""
        return self._sent_bytes.pop(session, 0)

    async def close(self) -> None:
        in_band = self.in_band.link
        links = [*self._express, *([in_band] if in_band is not None else [])]
        await asyncio.gather(*(link.close() for link in links))

    def _offer(self, link: FrameLink, session: str, frame: wire.Frame) -> None:
        if link.num_waiting >= MAX_WAITING:
            _log.debug("a stage does not keep up with the express messages")
            return
        with contextlib.suppress(DeviceLostError):  # the link tells its owner
            self._sent_bytes[session] += link.send_frame(frame)
