"""The list of weights that are there quantised, as it crosses the network."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from flowedge.core.errors import ProtocolError
from flowedge.storage.digest import digest_of, is_digest
from flowedge.weights.manifest.manifest import MAX_MANIFEST_BYTES, MAX_TENSOR_BYTES, MAX_TENSORS


@dataclass(frozen=True)
class QuantisedEntry:
    """A file of a QuantCache: the digest of its key, its bytes, and their SHA-256."""

    key: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class QuantisedList:
    """Those of one model, quantisation and dtype that somebody has."""

    entries: tuple[QuantisedEntry, ...]

    @cached_property
    def content(self) -> bytes:
        """As it is stored and sent."""
        return json.dumps([asdict(entry) for entry in self.entries], separators=(",", ":")).encode()

    @cached_property
    def id(self) -> str:
        """SHA-256 of its content."""
        return digest_of(self.content)


def parse_quantised(data: bytes, expected_id: str) -> QuantisedList:
    """The list of an id from the bytes that somebody sent. ProtocolError when they are not that."""
    if len(data) > MAX_MANIFEST_BYTES or digest_of(data) != expected_id:
        raise ProtocolError(f"what came as the list {expected_id} is another, or too large")
    try:
        raw = json.loads(data)
        if not isinstance(raw, list) or len(raw) > MAX_TENSORS:
            raise ProtocolError(f"the list {expected_id} is none, or too long")
        return QuantisedList(tuple(_entry(entry) for entry in raw))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"the list {expected_id} is not valid: {error!r}") from error


def _entry(raw: Any) -> QuantisedEntry:
    key, size, sha256 = raw["key"], raw["bytes"], raw["sha256"]
    if not all(isinstance(name, str) and is_digest(name) for name in (key, sha256)):
        raise ProtocolError("a hash of the list is no SHA-256")
    if type(size) is not int or not 0 <= size <= MAX_TENSOR_BYTES:
        raise ProtocolError("a size of the list cannot be")
    return QuantisedEntry(key, size, sha256)
