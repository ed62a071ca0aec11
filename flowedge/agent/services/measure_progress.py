"""How far a measurement is, from the lane's thread to the event loop."""

from __future__ import annotations

import threading
import time

from flowedge.core.errors import DeadlineError


class MeasureProgress:
    """Passes texts on, and ends the work that tells them when it takes too long or nobody waits for it."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._stopped = threading.Event()
        self._text: str | None = None

    def tell(self, text: str) -> None:
        """To be called by the work, between timings. Raises DeadlineError when it has to end."""
        if self._stopped.is_set():
            raise DeadlineError("nobody waits for the measurement any more")
        if time.monotonic() > self._deadline:
            raise DeadlineError(f"the device was not measured within {self._limit_s:g} s; use fewer repeats")
        self._text = text

    def latest(self) -> str | None:
        """What was told last, once."""
        text, self._text = self._text, None
        return text

    def stop(self) -> None:
        """Have the work end at its next step."""
        self._stopped.set()
