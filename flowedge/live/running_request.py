"""A request that a draft node serves, as the program that asked for it sees it."""

from __future__ import annotations

import asyncio
import time

from flowedge.core.errors import DeadlineError
from flowedge.core.request import Output
from flowedge.network.deadline import within


class RunningRequest:
    """One request that is being served.

    Attributes:
        waiting: whether it waits for room.
        express_bytes: bytes sent for it on express links, once it has ended.
        concluded: whether its last output is out.
    """

    def __init__(self, session: str, *, waiting: bool = False) -> None:
        self.session = session
        self.waiting = waiting
        self.outputs: asyncio.Queue[Output] = asyncio.Queue()
        self.progressed = time.monotonic()
        self.express_bytes = 0
        self.concluded = False

    def conclude(self, output: Output) -> None:
        self.concluded = True
        self.outputs.put_nowait(output)

    async def next_output(self, timeout_s: float) -> Output | None:
        """Return the next output, or None if there is no output within the time."""
        try:
            return await within(timeout_s, self.outputs.get(), "no output")
        except DeadlineError:
            return None

    async def next_outputs(self, timeout_s: float) -> list[Output]:
        """Return all outputs that there are, at least one; none if there is no output within the time."""
        first = await self.next_output(timeout_s)
        outputs = [] if first is None else [first]
        while outputs and not self.outputs.empty():
            outputs.append(self.outputs.get_nowait())
        return outputs
