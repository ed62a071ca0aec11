"""A log whose number of lines does not depend on how often others give a reason for a line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowedge.core.log_fields import Fields, about

if TYPE_CHECKING:
    from typing_extensions import Unpack

WINDOW_S = 60.0
LINES = 10  # of a window, where nothing else is said


class LimitedLog:
    """Writes a number of lines in WINDOW_S seconds at most, then a line with the number of lines left out."""

    def __init__(
        self,
        logger: logging.Logger,
        event: str,
        *,
        level: int = logging.WARNING,
        lines: int = LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """event: the name of the event in the log; lines: of a window; clock: returns seconds."""
        self._logger, self._event, self._level, self._clock = logger, event, level, clock
        self._lines = lines
        self._began = float("-inf")
        self._written = self._left_out = 0

    def add(self, text: str, *, error: BaseException | None = None, **fields: Unpack[Fields]) -> None:
        """Write a line with fields and the traceback of an error; count it if there were too many."""
        now = self._clock()
        if now - self._began >= WINDOW_S:
            self._begin(now)
        if self._written >= self._lines:
            self._left_out += 1
            return
        self._written += 1
        fields["event"] = self._event
        self._logger.log(self._level, "%s", text, exc_info=error, extra=about(**fields))

    def _begin(self, now: float) -> None:
        if self._left_out:
            self._logger.log(
                self._level,
                "%d more lines as these were left out",
                self._left_out,
                extra=about(event=self._event),
            )
        self._began, self._written, self._left_out = now, 0, 0
