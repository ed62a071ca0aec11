"""The log of one request on the draft node."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flowedge.core.errors import FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.core.request import Request
from flowedge.engine.statistics import RequestClock
from flowedge.network.log_rate import LogRate, more

_log = logging.getLogger("flowedge.agent.services.generation_service")


class RequestLog:
    """The log of one request, beginning at its arrival."""

    def __init__(self, request_id: str, peer: str, caller: str, refusals: LogRate) -> None:
        """
        peer: address of the client.
        caller: what the client's calls are counted by (see Caller.key).
        refusals: the rate of the lines about requests that were refused.
        """
        self.caller = caller
        self._refusals = refusals
        self._request_id = request_id
        self._peer = peer
        self._arrived = time.monotonic()
        self._opened = False
        self._finish_reason = ""

    def finished(self, reason: str) -> None:
        """Record why the answer is complete: "eos", "stop" or "length"."""
        self._finish_reason = reason

    def failed(self, error: FlowEdgeError) -> None:
        """Log a refusal; if a session was opened, its end has been logged already."""
        silent = None if self._opened else self._refusals.due((self.caller, error.code))
        if silent is not None:
            fields = about(
                event="request_refused", request=self._request_id, peer=self._peer, code=error.code
            )
            _log.warning("the request was refused: %s%s", error, more(silent), extra=fields)

    @contextmanager
    def session(self, request: Request, pipeline: str, clock: RequestClock) -> Iterator[None]:
        """Log the opening of a session, and its end when the context is left."""
        self._opened = True
        fields = about(
            event="session_opened",
            pipeline=pipeline,
            session=request.session,
            peer=self._peer,
            strategy=request.strategy,
            prompt_tokens=len(request.prompt),
        )
        _log.info("a session was opened", extra=fields)
        level, reason = logging.WARNING, ""
        try:
            yield
            level, reason = logging.INFO, self._finish_reason
        except asyncio.CancelledError:
            # A client that has the last event may hang up before this side knows that it was sent.
            level, reason = logging.INFO, self._finish_reason or "the client went away"
            raise
        except BaseException as error:
            reason = str(error) or type(error).__name__
            raise
        finally:
            fields = about(
                event="session_closed",
                pipeline=pipeline,
                session=request.session,
                reason=reason,
                new_tokens=clock.num_tokens,
                first_token_s=clock.ttft_s,
                seconds=time.monotonic() - self._arrived,
            )
            _log.log(level, "a session has ended", extra=fields)
