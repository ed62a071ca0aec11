"""Bounds on the texts of a request, checked before any of them is used or logged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from flowedge.core.errors import BadRequestError

MAX_TEXT = 256  # characters of a text that is not listed below
MAX_PATH = 1024
MAX_TEXTS = 1024  # in one list

# Characters; None where the service has a limit of its own.
LIMITS: Mapping[str, int | None] = {
    "flowedge.v1.GenerateRequest.prompt": None,
    "flowedge.v1.GenerateRequest.text": None,
    "flowedge.v1.Grammar.json_schema": None,
    "flowedge.v1.Grammar.lark": None,
    "flowedge.v1.Grammar.regex": None,
    "flowedge.v1.Conversation.tools": None,
    "flowedge.v1.Conversation.template_values": None,
    "flowedge.v1.ChatMessage.content": None,
    "flowedge.v1.ChatMessage.reasoning": None,
    "flowedge.v1.ToolCall.arguments": None,
    "flowedge.v1.StageRole.model": MAX_PATH,
    "flowedge.v1.DraftNodeRole.model": MAX_PATH,
    "flowedge.v1.DraftNodeRole.drafter": 4 * MAX_PATH,
    "flowedge.v1.DraftNodeRole.drafters": MAX_PATH,
    "flowedge.v1.DraftNodeRole.tokenizer": MAX_PATH,
    "flowedge.v1.Middle.model": MAX_PATH,
    "flowedge.v1.WeightSources.name": MAX_PATH,
    "flowedge.v1.MeasureDeviceRequest.model": MAX_PATH,
    "flowedge.v1.MeasureDeviceRequest.drafter": 4 * MAX_PATH,
    "flowedge.v1.MeasureDeviceRequest.drafters": MAX_PATH,
    "flowedge.v1.LookRequest.model": MAX_PATH,
}


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
