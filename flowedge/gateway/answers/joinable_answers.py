"""Answers that are kept for a while: a request that comes again with its Idempotency-Key joins them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from starlette.types import Message, Send

from flowedge.core.log_fields import about
from flowedge.gateway.errors import ApiError, busy
from flowedge.gateway.record import CURRENT, RequestRecord
from flowedge.gateway.state import Gateway
from flowedge.network.deadline import set_within

HEADER = "idempotency-key"
JOINED = "x-flowedge-joined"
"""The header that names the earlier request whose answer a request has joined."""
PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/api/chat", "/api/generate"})
"""Endpoints whose answers can be joined."""
LONGEST_KEY = 255  # characters
_MOST_WAITING = 64  # messages of an answer too large to be kept that wait for its readers

Answer: TypeAlias = Callable[[Send], Awaitable[None]]
"""An application that has its request already: it sends its answer, and returns at the end."""

_log = logging.getLogger(__name__)


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that a request has; None without one.

    Raises:
        ApiError: with status 400, when the key is empty, too long or no printable ASCII.
    """
    key = headers.get(HEADER)
    if key is None:
        return None
    key = key.strip()
    if not 0 < len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        message = (
            f"Idempotency-Key is {key[:40]!r}; it must have 1 to {LONGEST_KEY} printable ASCII characters"
        )
        raise ApiError(400, message, param=HEADER, code="invalid_idempotency_key")
    return key


class JoinableAnswer:
    """An answer that runs on its own, for any number of readers; each gets all of it from its beginning.

    Attributes:
        record: of the request that began it, filled by the answer.
        fingerprint: of the path and the body.
        size: bytes of what was answered so far.
        joinable: whether all of it is here, and it has not failed.
    """

    def __init__(
        self, answer: Answer, fingerprint: bytes, record: RequestRecord, others: JoinableAnswers
    ) -> None:
        """Run an answer; to be made by code that the event loop runs."""
        self.fingerprint = fingerprint
        self.record = replace(record, headers=dict(record.headers), recovery=asyncio.Event())
        self.size, self.joinable = 0, True
        self._others = others
        self._messages: list[Message] = []  # those from number `_first` on
        self._first = 0
        self._places: dict[object, int] = {}  # the number of the next message of each reader
        self._changed = asyncio.Event()  # replaced after each change
        self._abandoned: asyncio.Task[None] | None = None  # ends the answer while it has no reader
        self._running = asyncio.create_task(self._run(answer))

    @property
    def complete(self) -> bool:
        return self._running.done()

    async def read(self, record: RequestRecord, send: Send) -> None:
        """Send the answer from its beginning, then as it comes; fill the record of the reader's request.

        Raises:
            ApiError: with status 503, when there was no room for it before it had a reader.
            Exception: what the application raises.
        """
        reader = object()
        self._places[reader] = self._first
        if self._abandoned is not None:
            self._abandoned.cancel()
        try:
            while (message := await self._next(reader)) is not None:
                if message["type"] == "http.response.start":
                    record.headers.update(self.record.headers)
                await send(dict(message))
            if self._running.cancelled():
                raise busy("answers with an Idempotency-Key")
            await self._running
        finally:
            del self._places[reader]
            self._wake_readers()
            self._fill(record)
            if not self._places and self.joinable:
                self._abandoned = asyncio.create_task(self._end_abandoned())
            elif not self._places:
                self._running.cancel()

    def forget(self) -> None:
        """Have no further request join the answer; its readers go on."""
        self.joinable = False
        if not self._places:
            self._running.cancel()

    def _fill(self, record: RequestRecord) -> None:
        """Fill the record of a reader's request; tokens count for the request that began the answer."""
        own = self.record
        record.model, record.pipeline = own.model, own.pipeline
        record.outcome = record.outcome or own.outcome
        if record.request_id == own.request_id:
            record.tokens_in, record.tokens_out = own.tokens_in, own.tokens_out

    async def _next(self, reader: object) -> Message | None:
        """Return a reader's next message; None at the end."""
        while (place := self._places[reader] - self._first) >= len(self._messages):
            if self.complete:
                return None
            changed = self._changed
            await changed.wait()
        self._places[reader] += 1
        message = self._messages[place]
        if not self.joinable:
            read = min(self._places.values()) - self._first
            del self._messages[:read]
            self._first += read
            self._wake_readers()
        return message

    async def _run(self, answer: Answer) -> None:
        CURRENT.set(self.record)
        try:
            await answer(self._take)
        finally:
            self._running.add_done_callback(lambda _: self._end())

    async def _take(self, message: Message) -> None:
        """Add a message of the application; wait for the readers where the answer is too large to be kept."""
        self._messages.append(message)
        added = len(message.get("body", b""))
        self.size += added
        if message["type"] == "http.response.start":
            self.record.status = message["status"]
        self._wake_readers()
        if self.joinable:
            self._others.evict(self, added)
        while not self.joinable and len(self._messages) > _MOST_WAITING:
            changed = self._changed
            await changed.wait()

    def _wake_readers(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _end(self) -> None:
        """Take note that the application has ended."""
        self._wake_readers()
        record = self.record
        failed = self._running.cancelled() or self._running.exception() is not None
        if failed or record.status != 200 or record.outcome:
            self._others.drop(self)  # the same request is answered anew
        else:
            self._others.expire(self)
        if not self._places:
            fields = about(
                event="abandoned_answer",
                request=record.request_id,
                reason="cancelled" if self._running.cancelled() else record.outcome or "ok",
                key=record.caller,
                model=record.model,
                pipeline=record.pipeline,
                prompt_tokens=record.tokens_in,
                new_tokens=record.tokens_out,
                seconds=record.seconds,
            )
            _log.info("an answer has ended that no client reads at the moment", extra=fields)

    async def _end_abandoned(self) -> None:
        """End the answer if no request joins it in time; a gateway that stops does not wait."""
        await self._others.wait_abandoned()
        if not self.complete:
            self._others.drop(self)


class JoinableAnswers:
    """The answers to requests with an Idempotency-Key, of all callers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._answers: dict[tuple[str, str], JoinableAnswer] = {}  # by caller and key, the oldest first
        self._size = 0

    def find(self, caller: str, key: str, path: str, body: bytes) -> JoinableAnswer | None:
        """Return the answer that a request joins; None if there is none.

        Raises:
            ApiError: with status 422, when the key was used for another request.
        """
        found = self._answers.get((caller, key))
        if found is not None and found.fingerprint != _fingerprint(path, body):
            message = "this Idempotency-Key was used for another request; use a new key for each request"
            raise ApiError(422, message, param=HEADER, code="idempotency_key_reused")
        return found

    def begin(
        self, caller: str, key: str, path: str, body: bytes, answer: Answer, record: RequestRecord
    ) -> JoinableAnswer:
        """Run an answer and keep it."""
        begun = JoinableAnswer(answer, _fingerprint(path, body), record, self)
        self._answers[caller, key] = begun
        self.evict(begun, 0)
        return begun

    def evict(self, grown: JoinableAnswer, added: int) -> None:
        """Count bytes of an answer; forget others while there are too many, complete ones and old ones first.

        An answer for which there is no room even so is not kept.
        """
        self._size += added
        limits = self._gateway.settings.limits
        others = [each for each in self._answers.values() if each is not grown]
        for each in (*sorted(others, key=lambda other: not other.complete), grown):
            if self._size <= limits.joinable_bytes and len(self._answers) <= limits.joinable_answers:
                return
            self.drop(each)

    def drop(self, answer: JoinableAnswer) -> None:
        """Have no request join an answer any more."""
        for name, each in self._answers.items():
            if each is answer:
                del self._answers[name]
                self._size -= answer.size
                answer.forget()
                return

    def expire(self, answer: JoinableAnswer) -> None:
        """Drop a complete answer after a while."""
        joinable_s = self._gateway.settings.deadlines.joinable_s
        asyncio.get_running_loop().call_later(joinable_s, self.drop, answer)

    async def wait_abandoned(self) -> None:
        """Return when an answer without a reader has waited for long enough, or the gateway stops."""
        await set_within(self._gateway.settings.deadlines.abandoned_s, self._gateway.draining)


def _fingerprint(path: str, body: bytes) -> bytes:
    return hashlib.sha256(path.encode() + b"\n" + body).digest()
