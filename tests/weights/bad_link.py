"""A link with planned faults: it damages, cuts and holds data at given numbers of bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from flowedge.network.address import split_address

T = TypeVar("T")
READ_BYTES = 256 << 10
WAIT_S = 120.0


class BadLink:
    """Forwards connections to a device; what that sends is counted, and suffers.

    Attributes:
        carried: bytes that the device has sent; cuts: how often all connections were cut.
    """

    def __init__(self, target: str) -> None:
        self.address = ""
        self.carried = 0
        self.cuts = 0
        self.damaged = 0
        self._target = split_address(target)
        self._damage_at: list[int] = []
        self._cut_at: list[int] = []
        self._hold_at: int | None = None
        self._held = threading.Event()
        self._down_until = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> BadLink:
        self._thread.start()
        self.address = self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)

    def plan(self, *, damage_at: list[int], cut_at: list[int], hold_at: int) -> None:
        """Plan faults by the number of bytes that the device sends from now on."""
        now = self.carried
        self._damage_at = [now + count for count in damage_at]
        self._cut_at = [now + count for count in cut_at]
        self._hold_at = now + hold_at

    def wait_until_held(self) -> None:
        """Wait until the link holds the data, as planned."""
        assert self._held.wait(WAIT_S), f"only {self.carried} bytes were sent"

    def release(self) -> None:
        """Carry data again."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def _listen(self) -> str:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        self._cut()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _serve(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        if self._loop.time() < self._down_until:
            near_out.close()
            return
        far_in, far_out = await asyncio.open_connection(*self._target)
        self._writers |= {near_out, far_out}
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._carry(near_in, far_out), self._suffer(far_in, near_out))
        self._writers -= {near_out, far_out}

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(READ_BYTES):
            target.write(data)
            await target.drain()
        target.close()

    async def _suffer(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(READ_BYTES):
            self.carried += len(data)
            if self._damage_at and self.carried > self._damage_at[0] and len(data) > 4096:
                del self._damage_at[0]
                self.damaged += 1
                middle = len(data) // 2
                data = data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :]
            if self._cut_at and self.carried > self._cut_at[0]:
                del self._cut_at[0]
                self.cuts += 1
                self._down_until = self._loop.time() + 1.0
                self._cut()
                return
            if self._hold_at is not None and self.carried > self._hold_at:
                self._held.set()
                await self._released.wait()
            target.write(data)
            await target.drain()
        target.close()

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)
