"""A request that a draft node serves, and how the outputs of its machine come to the requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import TYPE_CHECKING

from flowedge.core.errors import DeadlineError
from flowedge.core.request import Failed, Finished, Output
from flowedge.network.deadline import within

if TYPE_CHECKING:
    from flowedge.engine.draft_node.draft_session import DraftSession


class RunningRequest:
    """One request that is being served.

    Attributes:
        request: fitted to the context, if it asked for that.
        waiting: whether it waits for capacity.
        progressed: when the draft node last saw a message, a result or an output of it, on time.monotonic().
        express_bytes: bytes sent for it on express links, once it has ended.
        concluded: whether its last output is out.
    """

    def __init__(self, draft: DraftSession, *, waiting: bool = False) -> None:
        self.session = draft.name
        self.request = draft.request
        self._draft = draft
        self.waiting = waiting
        self.outputs: asyncio.Queue[Output] = asyncio.Queue()
        self.progressed = time.monotonic()
        self.express_bytes = 0
        self.concluded = False

    @property
    def awaited_routes(self) -> list[int]:
        """The routes on which segments of the request are under way."""
        return [route for route in self._draft.routes if not self._draft.ledger(route).all_returned]

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


def without_progress(running: Iterable[RunningRequest], now: float, limit_s: float) -> list[RunningRequest]:
    """Return the requests that are open and have made no progress for longer than `limit_s` seconds."""
    return [each for each in running if not each.waiting and now - each.progressed > limit_s]


OUTPUT_PAUSE_S = 0.01  # between two hand-overs of outputs, which take the interpreter's time from drafting


class OutputHandover:
    """Hands outputs over on the event loop: the first and the last of a request at once, others together.

    Outputs of the moments after a hand-over wait for the next one, OUTPUT_PAUSE_S later.
    """

    def __init__(
        self,
        lock: RLock,
        on_loop: Callable[[Callable[[], None]], None],
        deliver: Callable[[Output], None],
    ) -> None:
        """
        lock: the machine's.
        on_loop: has a function called on the event loop; may be called in any thread.
        deliver: gives an output to its request; called on the event loop, without the lock.
        """
        self._lock = lock
        self._on_loop = on_loop
        self._deliver = deliver
        self._outputs: list[Output] = []
        self._coming = False  # whether `_hand_over` will be called
        self._next: asyncio.TimerHandle | None = None

    def put(self, outputs: Sequence[Output]) -> None:
        """Add outputs, in order; called with the lock, in any thread."""
        self._outputs += outputs
        ended = any(isinstance(output, Finished | Failed) for output in outputs)
        if ended or (outputs and not self._coming):
            self._coming = True
            self._on_loop(self._hand_over)

    def _hand_over(self) -> None:
        if self._next is not None:
            self._next.cancel()
        with self._lock:
            outputs, self._outputs = self._outputs, []
            self._coming = bool(outputs)
        if outputs:
            self._next = asyncio.get_running_loop().call_later(OUTPUT_PAUSE_S, self._hand_over)
        for output in outputs:
            self._deliver(output)
