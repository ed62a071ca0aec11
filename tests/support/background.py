"""Something that goes on in a thread while a context is open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(run: Callable[[threading.Event], None]) -> Iterator[None]:
    """Call a function in a thread, which is to return soon after the event that it is given is set."""
    ended = threading.Event()
    thread = threading.Thread(target=run, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
