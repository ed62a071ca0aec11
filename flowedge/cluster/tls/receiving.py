"""Receiving the request of a call: within a time, up to a size, a few at once, with bounds on its texts."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc.aio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from flowedge.core.errors import BadRequestError, ContextLengthError, ProtocolError
from flowedge.core.pipeline_config import MAX_PATH
from flowedge.network.deadline import ProgressDeadline
from flowedge.network.grpc_handlers import Context

# gRPC would widen the window of a stream to megabytes that nobody has asked for. A larger message waits for
# one round trip more, when it is asked for; the rows of a usual segment fit.
WINDOW_BYTES = 256 << 10
SERVER_OPTIONS = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW_BYTES))
AT_ONCE = 4  # requests of one caller; each takes the memory of a message until it is whole

MAX_TEXT = 256  # characters of a text that is not listed below
MAX_CONFIG = 1 << 16  # of the settings of a pipeline, with the names of a model, a tokenizer and drafters
MAX_OPTIONS = 1 << 19  # of the options of a request, with a grammar
MAX_TEXTS = 1024  # in one list

# Characters; None where the service has a limit of its own.
LIMITS: Mapping[str, int | None] = {
    "flowedge.v1.GenerateRequest.prompt": None,
    "flowedge.v1.GenerateRequest.text": None,
    "flowedge.v1.GenerateRequest.options": MAX_OPTIONS,
    "flowedge.v1.Conversation.tools": None,
    "flowedge.v1.Conversation.template_values": None,
    "flowedge.v1.ChatMessage.content": None,
    "flowedge.v1.ChatMessage.reasoning": None,
    "flowedge.v1.ToolCall.arguments": None,
    "flowedge.v1.StageRole.config": MAX_CONFIG,
    "flowedge.v1.DraftNodeRole.config": MAX_CONFIG,
    "flowedge.v1.Middle.model": MAX_PATH,
    "flowedge.v1.WeightSources.name": MAX_PATH,
    "flowedge.v1.MeasureDeviceRequest.model": MAX_PATH,
    "flowedge.v1.MeasureDeviceRequest.sizes": MAX_CONFIG,
    "flowedge.v1.MeasureDeviceRequest.drafter": 4 * MAX_PATH,
    "flowedge.v1.MeasureDeviceRequest.drafters": MAX_PATH,
    "flowedge.v1.LookRequest.model": MAX_PATH,
}


class CallerOrder:
    """Lets each caller do a number of things at the same time; a caller that waits delays no other caller."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._semaphores: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()

    def of(self, caller: str) -> asyncio.Semaphore:
        """Return the caller's semaphore, which is forgotten when nobody uses it."""
        return self._semaphores.setdefault(caller, asyncio.Semaphore(self._at_once))


class RequestReceiver:
    """Receives requests; a caller's next request waits while `AT_ONCE` of its requests are coming."""

    def __init__(self, receive_s: float) -> None:
        """receive_s: seconds within which a request has to be whole, waiting included."""
        self._receive_s = receive_s
        self._turns = CallerOrder(AT_ONCE)

    async def receive(self, method: str, context: Context, limit: int, caller: str) -> bytes:
        """Return the request of a call.

        Args:
            limit: most bytes of the request.
            caller: the key of the caller.

        Raises:
            ContextLengthError: when it has more bytes than the limit.
            DeadlineError: when the request is not whole in time.
            ProtocolError: when there is none, or gRPC itself has refused its size.
        """
        deadline, called = ProgressDeadline(self._receive_s), method.removeprefix("/")

        async def receive() -> Any:
            async with self._turns.of(caller):
                return await context.read()

        data = await deadline.wait(receive(), f"the request of {called} was not received")
        if data is grpc.aio.EOF or not isinstance(data, bytes):
            raise ProtocolError(f"{called} was called without a request, or with one that is too large")
        if len(data) > limit:
            raise ContextLengthError(
                f"the request of {called} has {len(data)} bytes; the maximum is {limit}; shorten it"
            )
        return data


def parser_of(method: str, deserialise: Callable[[bytes], Any], limit: int) -> Callable[[bytes], Any]:
    """Return the function that turns the bytes of a method's request into a checked message.

    It raises ProtocolError for bytes that are no such message or too many, and BadRequestError for a text
    that is too long.
    """
    called = method.removeprefix("/")

    def parse(data: bytes) -> Any:
        if len(data) > limit:
            raise ProtocolError(f"a message of {called} has {len(data)} bytes; the maximum is {limit}")
        try:
            message = deserialise(data)
        except DecodeError as error:
            raise ProtocolError(f"{len(data)} bytes are not a request of {called}: {error}") from error
        if isinstance(message, Message):
            check_texts(message)
        return message

    return parse


def check_texts(message: Message) -> None:
    """Check the length of every text in a message.

    Raises:
        BadRequestError: when a text is too long, or a list has too many texts; it names the field.
    """
    for field, value in message.ListFields():
        if _is_map(field):
            _check_map(field, value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in _each(field, value):
                check_texts(each)
        elif field.type == FieldDescriptor.TYPE_STRING:
            _check_list(field, value)


def _check_list(field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated and len(value) > MAX_TEXTS:
        raise BadRequestError(f"{field.name} has {len(value)} texts; at most {MAX_TEXTS} are allowed")
    for text in _each(field, value):
        _check_text(field, text)


def _check_map(field: FieldDescriptor, value: Mapping[Any, Any]) -> None:
    if len(value) > MAX_TEXTS:
        raise BadRequestError(f"{field.name} has {len(value)} entries; at most {MAX_TEXTS} are allowed")
    for key in value:
        if isinstance(key, str):
            _check_text(field, key)


def _check_text(field: FieldDescriptor, text: str) -> None:
    limit = LIMITS.get(field.full_name, MAX_TEXT)
    if limit is not None and len(text) > limit:
        raise BadRequestError(
            f"{field.name} has {len(text)} characters; at most {limit} are allowed: {text[:40]!r}..."
        )


def _each(field: FieldDescriptor, value: Any) -> Iterator[Any]:
    yield from value if field.is_repeated else (value,)


def _is_map(field: FieldDescriptor) -> bool:
    entry = field.message_type
    return entry is not None and bool(entry.GetOptions().map_entry)
