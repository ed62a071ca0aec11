"""HTTP/1.1 on one connection, with the limits that uvicorn's own protocol lacks."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from flowedge.core.log_fields import about
from flowedge.gateway.config import GatewayDeadlines, GatewayLimits
from flowedge.gateway.connections import ConnectionTable
from flowedge.gateway.errors import ApiError, busy
from flowedge.gateway.status_routes import PATHS as OPEN_PATHS

_log = logging.getLogger(__name__)
# Kept small, so that a client which has stopped reading is noticed after little output.
SEND_BUFFER = 16 << 10
_WRITE_BUFFER = 16 << 10
# For a client to read an answer that came before it had sent all: a close would have the system discard it.
_LINGER_S = 2.0
_LINGER_BYTES = 64 << 20
_RESERVED_S = 2.0  # for the request of a connection beyond the limit
_UPGRADES = frozenset({b"upgrade", b"http2-settings"})


@dataclass(frozen=True)
class ConnectionRules:
    """What every connection keeps to."""

    limits: GatewayLimits
    deadlines: GatewayDeadlines
    table: ConnectionTable
    root_path: str = ""


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
        self._reserved = False  # beyond the limit of connections
        self._refused = False  # nothing more that comes is looked at
        self._unread = _LINGER_BYTES  # bytes that may still come and be thrown away

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            # Also ends a connection whose last output nobody takes, after the request itself.
            milliseconds = int(1000 * self._rules.deadlines.write_s)
            with suppress(OSError):  # a system without it
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        self._reserved = not self._rules.table.enter(self, self.client[0] if self.client else "")
        first_s = self._rules.deadlines.headers_s
        self._start_timer(min(first_s, _RESERVED_S) if self._reserved else first_s, self.give_way)

    def connection_lost(self, exc: Exception | None) -> None:
        self._rules.table.leave(self)
        self._stop_timer()
        self._stop_writing_timer()
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Close the connection, which has no request under way; a reserved one is told why."""
        if self.transport.is_closing():
            return
        if self._reserved and not self._refused:
            self.transport.write(_raw_answer(busy("connections")))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._unread -= len(data)
            if self._unread < 0:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        began_in_headers = self._in_headers
        self._header_bytes += len(data) if began_in_headers else 0
        self._parse(data)
        if self._in_headers and not self._refused:
            if not began_in_headers:
                self._header_bytes = len(data)
            self._check_headers()

    def _parse(self, data: bytes) -> None:
        """Hand bytes to the parser; an offer of another protocol is declined by going on in this one."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(ApiError(400, "this is not a valid HTTP request"))
        except httptools.HttpParserUpgrade as offer:
            if not self._refused:
                # The parser takes all that follows for the other protocol: another one reads it, from a head
                # without the offer.
                self.parser = httptools.HttpRequestParser(self)
                self._parse(self._head_without_offer() + data[offer.args[0] :])

    def _head_without_offer(self) -> bytes:
        version = self.scope["http_version"].encode()
        lines = [self.scope["method"].encode() + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                tokens = (token.strip() for token in value.split(b","))
                kept = b", ".join(token for token in tokens if token.lower() not in _UPGRADES)
            if name not in _UPGRADES and (kept or not value):
                lines.append(name + b": " + kept)
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._refused:
            return
        self._in_headers, self._header_bytes = True, 0
        self._start_timer(self._rules.deadlines.headers_s, self._refuse_slow)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._rules.limits.headers:
            self._refuse(ApiError(431, f"there are more than {self._rules.limits.headers} headers"))

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._stop_timer()
        sizes = (len(name) + len(value) + 4 for name, value in self.headers)
        self._header_bytes = len(self.url) + sum(sizes)
        self._check_headers()
        self._check_target()
        if self._refused:
            return
        if self.parser.should_upgrade():
            self.scope["method"] = self.parser.get_method().decode("ascii")
            self.scope["http_version"] = self.parser.get_http_version()
            return  # until the head comes again, without the offer
        self._rules.table.works(self)
        super().on_headers_complete()
        if self._reserved:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not (self._refused or self.parser.should_upgrade()):
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.pipeline:
            self._rules.table.waits(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_writing_timer()
        self._writing = self.loop.call_later(self._rules.deadlines.write_s, self._cut_off)

    def resume_writing(self) -> None:
        self._stop_writing_timer()
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, partial(self._answer, cycle, app))

    async def _answer(
        self, cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run the application, with what uvicorn's own sending lacks."""
        ends_with_connection = False

        async def send_framed(message: Message) -> None:
            nonlocal ends_with_connection
            lingers = False
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                if scope["http_version"] == "1.0" and b"content-length" not in names:
                    ends_with_connection, cycle.chunked_encoding = True, False
            else:
                if ends_with_connection and scope["method"] != "HEAD":
                    cycle.expected_content_length = len(message.get("body", b""))
                if cycle.more_body and not message.get("more_body", False) and not cycle.keep_alive:
                    lingers = cycle.keep_alive = True  # closed below, when the client had time to read
            await send(message)
            if lingers and not self.transport.is_closing():
                self._linger()

        await app(scope, receive, send_framed)

    def _check_headers(self) -> None:
        most = self._rules.limits.header_bytes
        if self._header_bytes > most:
            message = f"the request line and its headers are larger than {most} bytes, the maximum"
            self._refuse(ApiError(431, message))

    def _check_target(self) -> None:
        """Refuse a request that names its host twice, or asks for a tunnel, or what is not served now."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1:
            self._refuse(ApiError(400, "there are two Host headers; send one"))
        elif self.parser.get_method() == b"CONNECT":
            self._refuse(ApiError(400, "this is no proxy; send the request to its server"))
        elif not self.url.startswith((b"/", b"*")):
            host = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
            if hosts and host.lower() != hosts[0].lower():
                self._refuse(ApiError(400, "the URL of the request line is of another host than Host"))
        if self._reserved and not self._refused and not self._asks_for_health():
            self._refuse(busy("connections"))

    def _asks_for_health(self) -> bool:
        path = self.url.partition(b"?")[0].decode("latin-1").removeprefix(self._rules.root_path)
        return path in OPEN_PATHS

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

    def _refuse_slow(self) -> None:
        seconds = self._rules.deadlines.headers_s
        self._refuse(ApiError(408, f"the request line and its headers did not come within {seconds:g} s"))

    def _cut_off(self) -> None:
        """End the connection of a client that does not read; its request is cancelled with it."""
        fields = about(event="slow_reader", peer=str(self.client), seconds=self._rules.deadlines.write_s)
        _log.warning("a client that does not read is cut off", extra=fields)
        self.transport.abort()

    def _refuse(self, error: ApiError) -> None:
        """Answer what cannot be handed to the application, and close the connection."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_timer()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or not cycle.more_body or self.pipeline:
                self.transport.close()  # the error would stand in an answer, or before one
                return
            cycle.disconnected, cycle.waiting_for_100_continue = True, False  # its body will not come
            cycle.message_event.set()
        self.transport.write(_raw_answer(error))
        self._linger()

    def _linger(self) -> None:
        """Close when the client has closed, after a while, or when too much has come that nobody reads."""
        self._refused = True
        self._unset_keepalive_if_required()
        self._rules.table.waits(self)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._start_timer(_LINGER_S, self.transport.close)


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
