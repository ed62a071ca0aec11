"""The log of refused streams, which a caller must not be able to fill."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flowedge.core.errors import FlowEdgeError
from flowedge.core.log_fields import about

EVERY_S = 60.0  # between two lines about one caller
_MAX_CALLERS = 256  # whose refusals are counted apart

_log = logging.getLogger(__name__)


@dataclass
class _Refusals:
    logged_at: float
    unlogged: int = 0


@dataclass
class RefusalLog:
    """Logs the first refused stream of a caller, then at most one line a minute with the number refused."""

    clock: Callable[[], float] = time.monotonic
    callers: dict[str, _Refusals] = field(default_factory=dict)

    def refused(self, caller: str, lane: str, error: FlowEdgeError) -> None:
        """Take note of a refused stream; `caller` is the name in its certificate."""
        now = self.clock()
        known = self.callers.get(caller)
        if known is not None and now - known.logged_at < EVERY_S:
            known.unlogged += 1
            return
        refused = 1 if known is None else known.unlogged + 1
        self.callers.pop(caller, None)
        if len(self.callers) >= _MAX_CALLERS:  # forget the caller that was logged longest ago
            self.callers.pop(next(iter(self.callers)))
        self.callers[caller] = _Refusals(now)
        fields = about(event="stream_refused", peer=caller, lane=lane, code=error.code, refused=refused)
        _log.warning("a stream of %s was refused: %s", caller, error, extra=fields)
