"""Answers that are sent piece by piece: server-sent events, and JSON lines."""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from flowedge.core.plain_text import visible_field
from flowedge.gateway.errors import ApiError, api_error
from flowedge.gateway.record import CURRENT, RequestRecord
from flowedge.gateway.state import Gateway, gateway_of
from flowedge.network.deadline import set_within

_MOST_WAITING = 64  # pieces that wait for a client that reads slowly
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_MOST_NAME = 100  # characters of a device's name
_BLANK = b" "


@dataclass(frozen=True)
class ServerEvent:
    """An event of a stream.

    Attributes:
        data: usually JSON.
        event: its name; None for an event without a name.
    """

    data: str
    event: str | None = None


def event_stream(
    events: AsyncIterator[str | ServerEvent],
    request: Request,
    *,
    error_event: Callable[[ApiError], str | ServerEvent] | None = None,
    last: str = "",
) -> StreamingResponse:
    """Return the answer that sends events as they come; a text is the data of an event without a name.

    An error before the first event becomes an answer of its own status. A later error is sent as an event.
    While there is no event, comment lines show that the connection lives, and which device was lost. `events`
    is closed when the client goes away or has not read for the limit of slow clients.

    Args:
        error_event: makes the event of an error; by default its data is the error in OpenAI's shape.
        last: data of the event that follows the event of an error, if there is one.
    """
    shown = error_event or (lambda error: json.dumps(error.body))
    end = _encoded_event(last) if last else b""
    return _Events(
        events, gateway_of(request), _encoded_event, lambda error: _encoded_event(shown(error)) + end
    )


def ndjson_stream(
    lines: AsyncIterator[str | Mapping[str, Any]],
    request: Request,
    *,
    error_line: Callable[[ApiError], Mapping[str, Any]] | None = None,
) -> StreamingResponse:
    """Return the answer that sends a JSON value a line; otherwise as `event_stream`.

    Instead of comments there are blanks before the next value, which JSON allows: an empty line would be an
    error to clients that read each line.
    """
    shown = error_line or (lambda error: {"error": error.message})
    return _EventLines(lines, gateway_of(request), _encoded_line, lambda error: _encoded_line(shown(error)))


def _encoded_event(event: str | ServerEvent) -> bytes:
    if isinstance(event, str):
        event = ServerEvent(event)
    return format_sse_event(data_str=event.data, event=event.event)


def _encoded_line(line: str | Mapping[str, Any]) -> bytes:
    text = line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)
    return f"{text}\n".encode()


class _ChunkedBody(StreamingResponse, ABC):
    """Sends what an iterator yields, encoded, as it comes."""

    def __init__(
        self,
        items: AsyncIterator[Any],
        gateway: Gateway,
        encode: Callable[[Any], bytes],
        encode_error: Callable[[ApiError], bytes],
    ) -> None:
        super().__init__((), headers=_HEADERS, media_type=self.media_type)
        self._items, self._gateway = items, gateway
        self._encode, self._encode_error = encode, encode_error
        self._pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_MOST_WAITING)
        self._begun = False
        self._sent_at = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        beside = [asyncio.create_task(each) for each in (self._read(), self._comment(), self._cut())]
        try:
            await self._send(send)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _read(self) -> None:
        """Queue what the iterator yields, then None or its error; it is closed here however this ends."""
        try:
            async for item in self._items:
                await self._pieces.put(self._encode(item))
        except Exception as error:  # noqa: BLE001 (the client is told)
            await self._pieces.put(error)
        else:
            await self._pieces.put(None)
        finally:
            close = getattr(self._items, "aclose", None)
            if close is not None:
                await close()

    async def _comment(self) -> None:
        """Queue a comment whenever nothing was sent for a while, and at once when a device was lost.

        Before the first piece, that a device was lost is no news: an error would still have its own status.
        """
        record = CURRENT.get() or RequestRecord("", "")
        pause_s = self._gateway.settings.deadlines.comment_s
        while True:
            told = await set_within(max(self._sent_at + pause_s - time.monotonic(), 0.001), record.recovery)
            record.recovery.clear()
            late = time.monotonic() >= self._sent_at + pause_s and self._pieces.empty()
            if late or (told and self._begun and record.recovering):
                await self._pieces.put(self.comment(record))
            if late or not told:
                self._sent_at = time.monotonic()

    @abstractmethod
    def comment(self, record: RequestRecord) -> bytes:
        """Return what shows that the connection lives."""

    async def _cut(self) -> None:
        await self._gateway.cut.wait()
        await self._pieces.put(self._gateway.stopping())

    async def _send(self, send: Send) -> None:
        """Send the pieces.

        Raises:
            Exception: the error that came before any piece.
        """
        piece = await self._pieces.get()
        if isinstance(piece, Exception):
            raise piece
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while True:
            body, ended = self._with_waiting(piece)
            self._sent_at = time.monotonic()
            await send({"type": "http.response.body", "body": body, "more_body": not ended})
            if ended:
                return
            piece = await self._pieces.get()

    def _with_waiting(self, piece: bytes | Exception | None) -> tuple[bytes, bool]:
        """Return a piece together with those that wait behind it, and whether they are the last."""
        pieces: list[bytes] = []
        while isinstance(piece, bytes):
            pieces.append(piece)
            if self._pieces.empty():
                return b"".join(pieces), False
            piece = self._pieces.get_nowait()
        if piece is not None:
            pieces.append(self._last_words(piece))
        return b"".join(pieces), True

    def _last_words(self, error: Exception) -> bytes:
        shown = api_error(error)
        record = CURRENT.get()
        if record is not None:
            record.outcome = shown.code or shown.kind
        return self._encode_error(shown)


class _Events(_ChunkedBody, EventSourceResponse):
    def comment(self, record: RequestRecord) -> bytes:
        device = visible_field(record.recovering, _MOST_NAME)
        return f": recovering device {device}\n\n".encode() if device else b": waiting\n\n"


class _EventLines(_ChunkedBody):
    media_type = "application/x-ndjson"

    def comment(self, record: RequestRecord) -> bytes:  # noqa: ARG002
        return _BLANK
