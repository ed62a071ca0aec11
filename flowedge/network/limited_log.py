"""A log whose number of lines does not depend on how often others give a reason for a line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowedge.core.log_fields import Fields, about
from flowedge.network.log_rate import MINUTE_S, LogRate, more

if TYPE_CHECKING:
    from typing_extensions import Unpack

LINES = 10  # a minute, where nothing else is said


class LimitedLog:
    """Writes a number of lines a minute at most; the next line says how many were left out."""

    def __init__(
        self,
        logger: logging.Logger,
        event: str,
        *,
        level: int = logging.WARNING,
        lines: int = LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """event: the name of the event in the log; lines: a minute; clock: returns seconds."""
        self._logger, self._event, self._level = logger, event, level
        self._rate = LogRate(lines, MINUTE_S, clock)

    def add(self, text: str, *, error: BaseException | None = None, **fields: Unpack[Fields]) -> None:
        """Write a line with fields and the traceback of an error; count it if there were too many."""
        silent = self._rate.due(self._event)
        if silent is not None:
            fields["event"] = self._event
            self._logger.log(self._level, "%s%s", text, more(silent), exc_info=error, extra=about(**fields))
