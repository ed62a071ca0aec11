"""HTTP/1.1 on one connection, with the limits that uvicorn's own protocol lacks."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from flowedge.core.log_fields import about
from flowedge.gateway.config import GatewayDeadlines, GatewayLimits
from flowedge.gateway.errors import ApiError

_log = logging.getLogger(__name__)
# Kept small, so that a client which has stopped reading is noticed after little output.
SEND_BUFFER = 16 << 10
_WRITE_BUFFER = 16 << 10


@dataclass(frozen=True)
class ConnectionRules:
    """What every connection keeps to."""

    limits: GatewayLimits
    deadlines: GatewayDeadlines


class LimitedProtocol(HttpToolsProtocol):
    """A connection that is closed when it is idle, or its client sends or reads too slowly or too much."""

    _rules: ClassVar[ConnectionRules]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timer: asyncio.TimerHandle | None = None  # for the next byte, or the end of the headers
        self._writing: asyncio.TimerHandle | None = None  # for the client to read
        self._in_headers = False
        self._header_bytes = 0
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            # Also ends a connection whose last output nobody takes, after the request itself.
            milliseconds = int(1000 * self._rules.deadlines.write_s)
            with suppress(OSError):  # a system without it
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        if len(self.connections) > self._rules.limits.connections:
            self._refuse(503, "the gateway has as many connections as it takes; try later", retry=True)
            return
        self._start_timer(self._rules.deadlines.idle_s, self._close_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_writing_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        began_in_headers = self._in_headers
        self._header_bytes += len(data) if began_in_headers else 0
        super().data_received(data)
        if self._in_headers and not self._refused:
            if not began_in_headers:
                self._header_bytes = len(data)
            self._check_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers, self._header_bytes = True, 0
        self._start_timer(self._rules.deadlines.headers_s, self._refuse_slow)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._rules.limits.headers:
            self._refuse(431, f"there are more than {self._rules.limits.headers} headers")

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._stop_timer()
        sizes = (len(name) + len(value) + 4 for name, value in self.headers)
        self._header_bytes = len(self.url) + sum(sizes)
        self._check_headers()
        if not self._refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (the same words for all)
        self._refuse(400, "this is not a valid HTTP request")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_writing_timer()
        self._writing = self.loop.call_later(self._rules.deadlines.write_s, self._cut_off)

    def resume_writing(self) -> None:
        self._stop_writing_timer()
        super().resume_writing()

    def _check_headers(self) -> None:
        most = self._rules.limits.header_bytes
        if self._header_bytes > most:
            self._refuse(431, f"the request line and its headers are larger than {most} bytes, the maximum")

    def _start_timer(self, seconds: float, action: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, action)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_writing_timer(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _close_idle(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _refuse_slow(self) -> None:
        seconds = self._rules.deadlines.headers_s
        self._refuse(408, f"the request line and its headers did not come within {seconds:g} s")

    def _cut_off(self) -> None:
        """End the connection of a client that does not read; its request is cancelled with it."""
        fields = about(event="slow_reader", peer=str(self.client), seconds=self._rules.deadlines.write_s)
        _log.warning("a client that does not read is cut off", extra=fields)
        self.transport.abort()

    def _refuse(self, status: int, message: str, *, retry: bool = False) -> None:
        """Answer what cannot be handed to the application, and close the connection."""
        self._refused = True
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:  # else the error would stand inside an answer
            self.transport.write(_raw_answer(ApiError(status, message, retry_after_s=1.0 if retry else None)))
        self.transport.close()


def limited_by(rules: ConnectionRules) -> type[LimitedProtocol]:
    """Return the protocol of connections that keep to these rules."""

    class Limited(LimitedProtocol):
        _rules = rules

    return Limited


def _raw_answer(error: ApiError) -> bytes:
    body = json.dumps(error.body).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **error.headers,
    }
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
