"""A bound on the lines of the log that others cause."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowedge.core.log_fields import Fields, about

if TYPE_CHECKING:
    from typing_extensions import Unpack

MINUTE_S = 60.0
MAX_KINDS = 1024  # of lines that are counted apart
LINES = 10  # a minute, where nothing else is said
_KIND_LENGTH = 40  # characters of a line, before its values are put in, that tell its kind


@dataclass
class _LineCount:
    """The lines of one kind since a time."""

    since: float
    logged: int = 0
    silent: int = 0


class LogRate:
    """Allows a few lines of each kind a minute, and counts the others."""

    def __init__(
        self, most: int = 1, seconds: float = MINUTE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """most: lines of one kind in so many seconds; clock: returns seconds."""
        self._most, self._seconds, self._clock = most, seconds, clock
        self._kinds: dict[Hashable, _LineCount] = {}

    @property
    def kinds(self) -> int:
        """How many kinds of lines are counted."""
        return len(self._kinds)

    def due(self, kind: Hashable) -> int | None:
        """Return how many lines of a kind were left out before the one to log now; None to leave it out."""
        now = self._clock()
        lines = self._kinds.get(kind)
        if lines is None and len(self._kinds) >= MAX_KINDS:
            self._forget(now)
            if len(self._kinds) >= MAX_KINDS:
                kind, lines = None, self._kinds.get(None)
        silent = 0
        if lines is None or now - lines.since >= self._seconds:
            silent = lines.silent if lines is not None else 0
            lines = self._kinds[kind] = _LineCount(now)
        if lines.logged >= self._most:
            lines.silent += 1
            return None
        lines.logged += 1
        return silent

    def _forget(self, now: float) -> None:
        """Forget the kinds of which there was no line for a while."""
        self._kinds = {
            kind: lines for kind, lines in self._kinds.items() if now - lines.since < self._seconds
        }


def more(silent: int) -> str:
    """Return the end of a line before which others of its kind were left out."""
    return f" ({silent} more like this since the last such line)" if silent else ""


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


class LibraryLimit(logging.Filter):
    """Passes a few lines a minute of each kind that a library writes by itself, such as gRPC of bad headers.

    The number of lines that were left out stands at the end of the next line of the kind.
    """

    def __init__(self, lines: int = LINES, clock: Callable[[], float] = time.monotonic) -> None:
        """lines: of one kind a minute; clock: returns seconds."""
        super().__init__()
        self._rate = LogRate(lines, MINUTE_S, clock)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] == "flowedge":
            return True
        silent = self._rate.due((record.name, record.levelno, str(record.msg)[:_KIND_LENGTH]))
        if silent:
            record.msg, record.args = record.getMessage() + more(silent), None
        return silent is not None
