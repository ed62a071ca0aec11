"""Reading the JSON documents that list objects. They come from other devices, so every value is checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, StringConstraints, TypeAdapter, ValidationError

from flowedge.core.errors import ProtocolError
from flowedge.device.disk_cache.digest import HEX_PATTERN, digest_of

T = TypeVar("T")
_SPACE = re.compile(r"[ \t\r\n]*")
MAX_DOCUMENT_BYTES = 64 << 20
MAX_OBJECT_BYTES = 1 << 40
MAX_ENTRIES = 200_000
MAX_KEYS = 32  # of an object
MAX_VALUE = 4096  # characters of an entry of a list, or of any other value

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


def parse(data: bytes, expected_id: str, kind: str, read: Callable[[DocumentReader], T]) -> T:
    """Build a document from received bytes; takes a second for the largest, so it belongs in a thread.

    Args:
        expected_id: the SHA-256 that the bytes must have.
        kind: of the document, for error messages.
        read: reads the document.

    Raises:
        ProtocolError: when the bytes have another SHA-256, are too many, or are not a valid document.
    """
    if len(data) > MAX_DOCUMENT_BYTES or digest_of(data) != expected_id:
        raise ProtocolError(
            f"the {len(data)} bytes received as the {kind} {expected_id} are too many or have another SHA-256"
        )
    try:
        reader = DocumentReader(data.decode("ascii"))
        document = read(reader)
        reader.end()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ProtocolError(f"the {kind} {expected_id} is not valid: {place}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the {kind} {expected_id} is not valid: {error}") from error
    return document


class DocumentReader:
    """Reads JSON value by value, so that a document costs no more than the first value that is wrong.

    A JSON library reads a document whole: 64 MiB of empty lists take more than a gigabyte, and hold up all
    other threads for seconds. The methods raise ValueError for text that is not the expected JSON.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._scan = json.JSONDecoder().raw_decode

    def object_of(self, lists: Mapping[str, TypeAdapter[Any]]) -> dict[str, Any]:
        """Return an object; `lists` gives the type of the entries of its lists, by key."""
        found: dict[str, Any] = {}
        self._take("{")
        while not self._is_at("}"):
            if found:
                self._take(",")
            key = json.loads(self._value())
            if not isinstance(key, str) or key in found or len(found) == MAX_KEYS:
                raise ValueError(f"{str(key)[:80]!r} is no key, is there twice, or is one of too many")
            self._take(":")
            found[key] = self.list_of(lists[key]) if key in lists else json.loads(self._value())
        self._take("}")
        return found

    def list_of(self, entry: TypeAdapter[T]) -> tuple[T, ...]:
        """Return a list of at most MAX_ENTRIES entries; ValidationError for an entry of another type."""
        found: list[T] = []
        self._take("[")
        while not self._is_at("]"):
            if found:
                self._take(",")
            if len(found) == MAX_ENTRIES:
                raise ValueError(f"a list has more than {MAX_ENTRIES} entries")
            found.append(entry.validate_json(self._value(), strict=True))
        self._take("]")
        return tuple(found)

    def end(self) -> None:
        """Check that nothing follows."""
        self._skip_space()
        if self._at < len(self._text):
            raise ValueError(f"text follows after character {self._at}")

    def _value(self) -> str:
        """Return the text of the next value, which has at most MAX_VALUE characters."""
        self._skip_space()
        piece = self._text[self._at : self._at + MAX_VALUE]
        try:
            _, length = self._scan(piece)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"there is no value of at most {MAX_VALUE} characters at character {self._at}"
            ) from error
        self._at += length
        return piece[:length]

    def _take(self, character: str) -> None:
        if not self._is_at(character):
            raise ValueError(f"{character!r} is missing at character {self._at}")
        self._at += 1

    def _is_at(self, character: str) -> bool:
        self._skip_space()
        return self._text.startswith(character, self._at)

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None, "the pattern matches the empty text"
        self._at = found.end()
