"""Turning prompts into tokens, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from flowedge.cluster.tls.receiving import CallerOrder
from flowedge.device.process import release_freed_memory
from flowedge.network.deadline import within

_LARGE_BYTES = 64 << 10  # the tokenizer's library takes some hundred times the size of a prompt meanwhile

T = TypeVar("T")


class PromptEncoder:
    """Encodes a few prompts at the same time, and one of each caller: others wait for their turn.

    The tokenizer's library lets other threads run while it works, so heartbeats go on.
    """

    def __init__(self, at_once: int, wait_s: float) -> None:
        """wait_s: seconds that a prompt may take, the wait for its turn included."""
        self._threads = ThreadPoolExecutor(at_once, "prompts")
        self._order = CallerOrder(1)
        self._wait_s = wait_s

    async def run(self, caller: str, encode: Callable[[], T], size: int) -> T:
        """Return the result of a function that encodes a prompt of a caller.

        size: of the prompt, in bytes.

        Raises:
            DeadlineError: when it takes too long.
        """

        def encode_here() -> T:
            try:
                return encode()
            finally:
                if size > _LARGE_BYTES:
                    release_freed_memory()

        async def encode_in_order() -> T:
            async with self._order.of(caller):
                encoding = asyncio.get_running_loop().run_in_executor(self._threads, encode_here)
                try:
                    return await asyncio.shield(encoding)
                except asyncio.CancelledError:
                    await asyncio.wait({encoding})  # a caller that went away has its turn until the end
                    raise

        return await within(self._wait_s, encode_in_order(), "the prompt was not tokenized")
