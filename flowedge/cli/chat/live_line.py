"""The line below an answer that is being written."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

from flowedge.cli.output import write_control

_INTERVAL_S = 0.1
_ROOM = "\x1bD\x1bM"  # a line down, which scrolls at the bottom, and up again
_KEEP, _BACK, _BELOW, _CLEAR = "\x1b7", "\x1b8", "\x1b[B\r", "\x1b[2K"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class LiveLine:
    """A line that stays below the text that a terminal is given; nothing where there is no terminal.

    Attributes:
        shown: whether there is one.
    """

    def __init__(self, write: Callable[[str], None], *, shown: bool) -> None:
        """write: of the terminal that gets the text."""
        self.shown = shown
        self._write = write
        self._last = 0.0
        self._drawn = False

    @classmethod
    def on_terminal(cls) -> LiveLine:
        """Return the line of standard output, if that is a terminal."""
        return cls(write_control, shown=sys.stdout.isatty() and sys.stdin.isatty())

    def show(self, text: str) -> None:
        """Replace the line, at most ten times a second."""
        now = time.monotonic()
        if not self.shown or (self._drawn and now - self._last < _INTERVAL_S):
            return
        self._last, self._drawn = now, True
        cut = text[: max(shutil.get_terminal_size().columns - 1, 1)]
        self._write(f"{_ROOM}{_KEEP}{_BELOW}{_CLEAR}{_DIM}{cut}{_PLAIN}{_BACK}")

    def clear(self) -> None:
        """Remove the line, before more text comes or the answer ends."""
        if self._drawn:
            self._drawn = False
            self._write(f"{_KEEP}{_BELOW}{_CLEAR}{_BACK}")
