"""Parsing the JSON documents that list objects. They come from other devices, so every value is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from flowedge.core.errors import ProtocolError
from flowedge.storage.digest import digest_of, is_digest

T = TypeVar("T")
MAX_DOCUMENT_BYTES = 64 << 20
MAX_OBJECT_BYTES = 1 << 40
MAX_ENTRIES = 200_000


def parse(data: bytes, expected_id: str, kind: str, build: Callable[[Any], T]) -> T:
    """Build a document from received bytes.

    expected_id: the SHA-256 that the bytes must have. kind: of the document, for error messages.

    Raises:
        ProtocolError: when the bytes have another SHA-256, are too many, or are not a valid document.
    """
    if len(data) > MAX_DOCUMENT_BYTES or digest_of(data) != expected_id:
        raise ProtocolError(
            f"the {len(data)} bytes received as the {kind} {expected_id} are too many or have another SHA-256"
        )
    try:
        return build(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"the {kind} {expected_id} is not valid: {error!r}") from error


def read_text(value: Any, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise ProtocolError(f"a name is not printable text of 1 to {most} characters: {str(value)[:80]!r}")
    return value


def read_count(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ProtocolError(f"a size is not an integer from 0 to {most}: {str(value)[:80]!r}")
    return value


def read_list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ProtocolError(f"a list is missing, or has more than {most} entries")
    return value


def read_digest(value: Any) -> str:
    if not isinstance(value, str) or not is_digest(value):
        raise ProtocolError(f"a hash is not a SHA-256 in hex: {str(value)[:80]!r}")
    return value
