"""Coroutines for blocking code, run by the event loop of one thread of this process."""

from __future__ import annotations

import asyncio
import atexit
import errno
import math
import os
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, aclosing
from typing import Any, Final, Generic, TypeVar

from flowedge.core.errors import FlowEdgeError

T = TypeVar("T")

_EXIT_S = 1.0  # for running coroutines to end when the process exits
_FULL_S = 0.05  # between two looks at whether the items that were read are taken
_END: Final = object()


class _LoopThread:
    """The thread, which is started by the first coroutine and ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_forked = False
        self.is_ending = False  # whether the process exits

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if self._is_forked:
            coroutine.close()
            raise FlowEdgeError(
                "this process was forked from a process that has used a client, of which gRPC has no copy; "
                "fork before the first client is used, or start the process by the method spawn"
            )
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_exception_handler(_without_late_events)
                threading.Thread(target=self._loop.run_forever, name="flowedge-client", daemon=True).start()
                atexit.register(self._cancel_all)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def after_fork(self) -> None:
        """Take note that the thread does not exist in this process, if there was one."""
        self._lock = threading.Lock()
        self._is_forked = self._loop is not None

    def _cancel_all(self) -> None:
        """Cancel what is running, so that devices hear of it before the process is gone."""

        async def cancel_all() -> None:
            self.is_ending = True
            running = asyncio.all_tasks() - {asyncio.current_task()}
            for task in running:
                task.cancel()
            await asyncio.wait(running) if running else None

        if not self._is_forked:
            wait([self.start(cancel_all())], _EXIT_S)


def _without_late_events(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Leave out errors that are none: gRPC has a loop handle events of closed loops and of closed queues."""
    error = context.get("exception")
    of_closed_loop = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    of_closed_queue = isinstance(error, OSError) and error.errno == errno.EBADF
    if not (of_closed_loop or of_closed_queue):
        loop.default_exception_handler(context)


_thread = _LoopThread()
os.register_at_fork(after_in_child=_thread.after_fork)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and return its result; it is cancelled if the caller is interrupted."""
    running = _thread.start(coroutine)
    try:
        return running.result()
    except BaseException:
        running.cancel()
        raise


class ReadAhead(Iterator[T], AbstractContextManager["ReadAhead[T]"], Generic[T]):
    """The items of an asynchronous generator, which the loop reads ahead of the thread that takes them.

    The generator is closed by `close`, at the end of the context, and when nothing refers to this any more.
    """

    def __init__(self, items: AsyncGenerator[T, None], most: float = math.inf) -> None:
        """most: number of items that are read ahead."""
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        begun = threading.Event()
        # The task holds the queue, not this object: dropping it ends the task.
        self._reading = _thread.start(_read(items, self._items, most, begun))
        weakref.finalize(self, self._reading.cancel).atexit = False  # when all tasks are cancelled
        begun.wait()  # the end of a task that has not begun would not close the generator

    def __next__(self) -> T:
        """Return the next item.

        Raises what the generator raises; concurrent.futures.CancelledError after `close`.
        """
        item = self._items.get()
        if item is not _END:
            taken: T = item
            return taken
        self._items.put(_END)  # for whoever asks next
        self._reading.result()
        raise StopIteration

    def close(self) -> None:
        """Close the generator, and wake the threads that wait for an item; has no effect at its end."""
        self._reading.cancel()
        self._items.put(_END)

    def __exit__(self, *error: object) -> None:
        self.close()


async def _read(
    items: AsyncGenerator[T, None], found: queue.SimpleQueue[Any], most: float, begun: threading.Event
) -> None:
    begun.set()
    try:
        async with aclosing(items):
            async for item in items:
                while found.qsize() >= most:  # noqa: ASYNC110 (who takes an item sets no event of the loop)
                    await asyncio.sleep(_FULL_S)
                found.put(item)
    finally:
        if not _thread.is_ending:  # or a thread that still waits would tell of an error at the exit
            found.put(_END)
