"""The lines that a proof prints while it runs: what was shown, and how long it took."""

from __future__ import annotations

import time


class Steps:
    """A printer of one line for each step."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def done(self, what: str) -> None:
        """Print that something was shown, and the seconds since the last step."""
        now = time.monotonic()
        print(f"{now - self._last:6.1f} s  {what}", flush=True)
        self._last = now

    def end(self, what: str) -> None:
        """Print that everything was shown, and the seconds of all steps."""
        self._last = self._started
        self.done(what)

    def fail(self, error: Exception) -> None:
        """Print what was not shown, and why."""
        print(f"{time.monotonic() - self._last:6.1f} s  FAILED: {error}", flush=True)

    def tell(self, text: str) -> None:
        """Print more about a failure."""
        print(text, flush=True)
