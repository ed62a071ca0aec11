"""The log of refused calls, which callers must not be able to fill."""

from __future__ import annotations

import logging

from flowedge.core.errors import FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.network.calls.caller import Caller
from flowedge.network.log_rate import LogRate, more

_log = logging.getLogger(__name__)


class RefusalLog:
    """Logs the first refusal of each caller, method and error, then one line a minute with their number."""

    def __init__(self) -> None:
        self._rate = LogRate()

    def refused(self, method: str, caller: Caller, error: FlowEdgeError) -> None:
        """Log a refusal, or count it."""
        called = method.removeprefix("/")
        silent = self._rate.due((caller.key, called, error.code))
        if silent is None:
            return
        peer = caller.name or caller.address
        fields = about(event="call_refused", peer=peer, reason=str(error), code=error.code)
        _log.warning("refused %s from %s: %s%s", called, caller, error, more(silent), extra=fields)
