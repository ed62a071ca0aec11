"""What happens to every request around its endpoint: checks, the body, cancellation, the log and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flowedge.core.errors import BadRequestError, DeadlineError
from flowedge.core.ids import check_request_id, new_request_id
from flowedge.core.log_fields import about
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.answers.joinable_answers import JOINED, PATHS, Answer, JoinableAnswers, idempotency_key
from flowedge.gateway.endpoints import EndpointNames
from flowedge.gateway.errors import ENCODINGS, ApiError, api_error
from flowedge.gateway.guards import check_host, check_origin
from flowedge.gateway.record import CURRENT, RequestRecord
from flowedge.gateway.state import Gateway
from flowedge.gateway.status_routes import PATHS as OPEN_PATHS
from flowedge.network.deadline import within


class ClientGoneError(Exception):
    """A client that has closed its connection before its request was complete."""


async def read_body(receive: Receive, headers: Mapping[str, str], most: int, seconds: float) -> bytes:
    """Return the body of a request.

    Args:
        most: bytes.

    Raises:
        ApiError: with status 413 when the body is too large, 408 when it does not come in time.
        ClientGoneError: when the client has gone.
    """
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)
    deadline = time.monotonic() + seconds
    body = bytearray()
    while True:
        try:
            left = max(0.001, deadline - time.monotonic())
            message = await within(left, receive(), "the body did not come")
        except DeadlineError:
            raise ApiError(
                408, f"the body did not come within {seconds:g} s", code="request_timeout"
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += message.get("body", b"")
        if len(body) > most:
            raise _too_large(most)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(most: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than {most} bytes, the maximum; send less", code="request_too_large"
    )


def decoded_body(body: bytes, headers: Mapping[str, str], most: int) -> bytes:
    """Return the body of a request as it was before its Content-Encoding.

    Args:
        most: bytes.

    Raises:
        ApiError: with status 413 when the decoded body is too large, 415 for an encoding that is not
            known, 400 when the body is not of the encoding that the header says.
    """
    names = (name.strip().lower() for name in headers.get("content-encoding", "").split(","))
    for name in reversed([name for name in names if name not in ("", "identity")]):
        if name.removeprefix("x-") not in ENCODINGS:
            known = " and ".join(ENCODINGS)
            raise ApiError(415, f"bodies encoded as {name[:40]!r} are not read; {known} are, or none")
        decoder = zlib.decompressobj(_ANY_WINDOW)
        try:
            body = decoder.decompress(body, most + 1)
        except zlib.error as error:
            raise ApiError(400, f"the body is not {name}, as its Content-Encoding says: {error}") from error
        if len(body) > most:
            raise _too_large(most)
        if not decoder.eof:
            raise ApiError(400, f"the body ends within its {name}; send all of it")
    return body


_ANY_WINDOW = zlib.MAX_WBITS | 32  # zlib finds out which of gzip and deflate it is
REQUEST_ID = "x-request-id"
_GONE = "client_gone"
_GONE_STATUS = 499  # as nginx logs it
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

_log = logging.getLogger("flowedge.gateway.requests")


class RequestMiddleware:
    """Wraps an application; see the module."""

    def __init__(self, app: ASGIApp, gateway: Gateway, endpoints: EndpointNames) -> None:
        self._app, self._gateway, self._endpoints = app, gateway, endpoints
        self._joinable = JoinableAnswers(gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        client = scope.get("client") or ("",)
        record = RequestRecord(_request_id(headers), scope["method"], peer=client[0])
        token = CURRENT.set(record)
        answer = _SentAnswer(send, record)
        try:
            await self._answer(scope, headers, receive, answer)
        except ClientGoneError:
            record.outcome, record.status = _GONE, record.status or _GONE_STATUS
        except Exception as error:  # noqa: BLE001 (a defect is logged, and the client is told)
            await answer.refuse(scope, receive, api_error(error))
        finally:
            CURRENT.reset(token)
            record.endpoint = self._endpoints.of(scope)
            self._note(record)

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, answer: _SentAnswer) -> None:
        gateway, record = self._gateway, answer.record
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_open = path in OPEN_PATHS
        http = gateway.settings.http
        check_host(http, headers)
        check_origin(http, scope["method"], headers)
        if gateway.draining.is_set() and not is_open:
            answer.closes = True
            raise gateway.stopping()
        caller = gateway.keys.caller_of(headers)
        scope.setdefault("state", {}).update(caller=caller, request_id=record.request_id)
        body = b""
        if record.method in _WITH_BODY:
            answer.closes = True  # what is left of a refused body is not read
            if isinstance(caller, ApiError):
                raise caller
            limits, deadlines = gateway.settings.limits, gateway.settings.deadlines
            body = await read_body(receive, headers, limits.body_bytes, deadlines.body_s)
            answer.closes = False
            body = decoded_body(body, headers, limits.body_bytes)
        if isinstance(caller, ApiCaller):
            record.caller = caller.name
        shown = {**scope, "method": "GET"} if answer.without_body else scope  # whatever can be got has a head
        endpoint: Answer = partial(self._app, shown, _BodyOnce(body))
        if is_open or isinstance(caller, ApiError) or record.method not in _WITH_BODY:
            await self._run(endpoint, receive, answer)
            return
        key = idempotency_key(headers) if path in PATHS and record.method == "POST" else None
        with gateway.answering():
            if key is not None:
                endpoint = self._joined(key, path, body, endpoint, record)
            await self._run(endpoint, receive, answer)

    def _joined(self, key: str, path: str, body: bytes, endpoint: Answer, record: RequestRecord) -> Answer:
        """Return the application that sends the answer of a key, which is begun if there is none.

        Raises:
            ApiError: with status 422, when the key was used for another request.
        """
        found = self._joinable.find(record.caller, key, path, body)
        if found is None:
            found = self._joinable.begin(record.caller, key, path, body, endpoint, record)
        else:
            record.headers[JOINED] = found.record.request_id
            self._gateway.metrics.joined.inc()
        return partial(found.read, record)

    async def _run(self, endpoint: Answer, receive: Receive, answer: _SentAnswer) -> None:
        """Run the endpoint; end it when the client goes away, or the time for running answers is over.

        Raises:
            ClientGoneError: when the client has gone.
            ApiError: with status 503, when the time is over and nothing was sent.
        """
        gateway = self._gateway
        task: asyncio.Future[Any] = asyncio.ensure_future(endpoint(answer))
        gone: asyncio.Future[Any] = asyncio.ensure_future(_wait_gone(receive))
        cut: asyncio.Future[Any] = asyncio.ensure_future(gateway.cut.wait())
        try:
            await asyncio.wait({task, gone, cut}, return_when=asyncio.FIRST_COMPLETED)
            if cut.done() and answer.record.status and not task.done() and not gone.done():
                # A stream ends itself, with an error as its last event.
                await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() or (answer.complete and not answer.without_body):
                await task
            elif answer.complete:
                return
            elif gone.done():
                raise ClientGoneError
            else:
                raise gateway.stopping()
        finally:
            for each in (task, gone, cut):
                each.cancel()
            await asyncio.gather(task, gone, cut, return_exceptions=True)

    def _note(self, record: RequestRecord) -> None:
        """Log and count a request that has ended."""
        record.outcome = record.outcome or ("ok" if record.status < 400 else f"http_{record.status}")
        self._gateway.metrics.ended(record)
        # A page loads twenty files, and a monitor asks every few seconds.
        usual = record.endpoint in OPEN_PATHS or record.endpoint.startswith("/static/")
        quiet = usual and record.status < 400
        fields = about(
            event="http_request",
            request=record.request_id,
            method=record.method,
            endpoint=record.endpoint or "other",
            status=record.status,
            reason=record.outcome,
            peer=record.peer,
            key=record.caller,
            model=record.model,
            pipeline=record.pipeline,
            prompt_tokens=record.tokens_in,
            new_tokens=record.tokens_out,
            seconds=record.seconds,
        )
        level = logging.DEBUG if quiet else logging.INFO
        _log.log(level, "%s", record.endpoint or "no endpoint", extra=fields)


def _request_id(headers: Mapping[str, str]) -> str:
    """Return the id that a client has given; a new one where it gave none that logs and sessions allow."""
    try:
        return check_request_id(headers.get(REQUEST_ID, ""))
    except BadRequestError:
        return new_request_id()


class _SentAnswer:
    """Sends the answer of a request, with its id among the headers.

    Attributes:
        closes: whether the connection ends with the answer.
        complete: whether all of it was sent.
        without_body: whether its headers are all of it.
    """

    def __init__(self, send: Send, record: RequestRecord) -> None:
        self._send, self.record = send, record
        self.closes = self.complete = False
        self.without_body = record.method == "HEAD"

    async def __call__(self, message: Message) -> None:
        if self.complete:
            return  # what follows the headers where they are all
        if message["type"] == "http.response.start":
            self.record.status = message["status"]
            own = [(REQUEST_ID.encode(), self.record.request_id.encode())]
            own += [(name.encode(), value.encode()) for name, value in self.record.headers.items()]
            if self.closes:
                own.append((b"connection", b"close"))
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)
        if self.without_body and not self.complete:
            self.complete = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, scope: Scope, receive: Receive, error: ApiError) -> None:
        """Answer with an error, unless an answer has begun."""
        self.record.outcome = error.code or error.kind
        if self.record.status:
            return
        await error.response(scope)(scope, receive, self)


class _BodyOnce:
    """The `receive` of an application whose request was read already; it then waits for ever.

    The application is cancelled when the client goes away, and need not watch for that.
    """

    def __init__(self, body: bytes) -> None:
        self._message: MutableMapping[str, Any] | None = {
            "type": "http.request",
            "body": body,
            "more_body": False,
        }

    async def __call__(self) -> Message:
        message, self._message = self._message, None
        if message is None:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets the event")
        return message


async def _wait_gone(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
