"""What a proof says while it runs: what was shown, and how long it took."""

from __future__ import annotations

import time


class Steps:
    """Prints a line a step."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def done(self, what: str) -> None:
        """Something has been shown; the time is that since the last step, in seconds."""
        now = time.monotonic()
        print(f"{now - self._last:6.1f} s  {what}", flush=True)
        self._last = now

    def end(self, what: str) -> None:
        """Everything has; the time is that of all."""
        self._last = self._started
        self.done(what)

    def fail(self, error: Exception) -> None:
        """What was not shown, and why."""
        print(f"{time.monotonic() - self._last:6.1f} s  FAILED: {error}", flush=True)

    def tell(self, text: str) -> None:
        """More about a failure."""
        print(text, flush=True)
