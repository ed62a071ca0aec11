"""The log of refused calls, which callers must not be able to fill."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TypeAlias

from flowedge.core.errors import FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.net.calls.caller import Caller

MINUTE_S = 60.0
MAX_KINDS = 1024  # of refusals that are counted apart

_Kind: TypeAlias = tuple[str, str, str]  # caller, method and code of the error

_log = logging.getLogger(__name__)


@dataclass
class _Refusals:
    """Refusals of one kind since the last line of the log."""

    logged_at: float
    silent: int = 0


class RefusalLog:
    """Logs the first refusal of each kind, then one line a minute with the number of further refusals."""

    def __init__(self, seconds: float = MINUTE_S) -> None:
        self._seconds = seconds
        self._kinds: dict[_Kind, _Refusals] = {}

    def refused(self, method: str, caller: Caller, error: FlowEdgeError) -> None:
        """Log a refusal, or count it."""
        now = time.monotonic()
        called = method.removeprefix("/")
        kind = (caller.key, called, error.code)
        seen = self._kinds.get(kind)
        if seen is None and len(self._kinds) >= MAX_KINDS:
            kind = ("", "", "")
            seen = self._kinds.get(kind)
        if seen is not None and now - seen.logged_at < self._seconds:
            seen.silent += 1
            return
        again = f" ({seen.silent} more since the last such line)" if seen is not None and seen.silent else ""
        self._forget(now)
        self._kinds[kind] = _Refusals(now)
        fields = about(
            event="call_refused", peer=caller.name or caller.address, reason=str(error), code=error.code
        )
        _log.warning("refused %s from %s: %s%s", called, caller, error, again, extra=fields)

    def _forget(self, now: float) -> None:
        """Forget the kinds of refusals that have ended, when there are many."""
        if len(self._kinds) < MAX_KINDS:
            return
        self._kinds = {
            kind: seen for kind, seen in self._kinds.items() if now - seen.logged_at < self._seconds
        }
