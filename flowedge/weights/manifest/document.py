"""Reading the JSON documents that list objects. They come from other devices, so every value is checked."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, TypeVar

from pydantic import AfterValidator, StringConstraints, TypeAdapter, ValidationError

from flowedge.core.errors import ProtocolError
from flowedge.storage.digest import HEX_PATTERN, digest_of

T = TypeVar("T")
MAX_DOCUMENT_BYTES = 64 << 20
MAX_OBJECT_BYTES = 1 << 40
MAX_ENTRIES = 200_000

Digest = Annotated[str, StringConstraints(pattern=f"^{HEX_PATTERN}$")]


def one_of(values: Container[str]) -> AfterValidator:
    """Return the check that a text is one of some values."""

    def check(text: str) -> str:
        if text not in values:
            raise ValueError(f"{text[:80]!r} may not stand here")
        return text

    return AfterValidator(check)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text[:80]!r} is not printable")
    return text


PRINTABLE = AfterValidator(_printable)


def parse(data: bytes, expected_id: str, kind: str, adapter: TypeAdapter[T]) -> T:
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
        return adapter.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ProtocolError(f"the {kind} {expected_id} is not valid: {place}: {first['msg']}") from error
