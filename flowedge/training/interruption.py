"""Ctrl-C, SIGTERM and a lost terminal while a training runs: the weights are whole at an interruption."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Turns signals into KeyboardInterrupt, at once or at the end of a section that must not be left halfway.

    Each further signal interrupts again, so that a second Ctrl-C ends the saving that the first has begun.
    """

    def __init__(self) -> None:
        self._sections = 0
        self._pending = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals of the process until the context ends; outside of the main thread do nothing.

        A signal that is ignored, as Ctrl-C is in the background of a shell script, stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._receive)
            for number in SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Have a signal wait for the end of the context, which raises KeyboardInterrupt then."""
        self._sections += 1
        try:
            yield
        finally:
            self._sections -= 1
        if self._pending and not self._sections:
            self._pending = False
            raise KeyboardInterrupt

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._sections:
            self._pending = True
        else:
            raise KeyboardInterrupt
