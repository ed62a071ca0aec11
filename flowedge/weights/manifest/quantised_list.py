"""The list of a model's weights that a device has quantised, as it crosses the network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from flowedge.storage.digest import digest_of
from flowedge.weights.manifest import document


@dataclass(frozen=True)
class QuantisedEntry:
    """A file of a QuantCache: the digest of its key, its bytes, and their SHA-256."""

    key: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class QuantisedList:
    """The quantised weights of one model, in one quantisation and dtype."""

    entries: tuple[QuantisedEntry, ...]

    @cached_property
    def content(self) -> bytes:
        """The JSON that is stored and sent."""
        return json.dumps([asdict(entry) for entry in self.entries], separators=(",", ":")).encode()

    @cached_property
    def id(self) -> str:
        """The SHA-256 of the content."""
        return digest_of(self.content)


def parse_quantised(data: bytes, expected_id: str) -> QuantisedList:
    """The list in received bytes, checked by `document.parse`."""
    return document.parse(data, expected_id, "list of quantised weights", _list)


def _list(raw: Any) -> QuantisedList:
    return QuantisedList(tuple(_entry(entry) for entry in document.read_list(raw, document.MAX_ENTRIES)))


def _entry(raw: Mapping[str, Any]) -> QuantisedEntry:
    size = document.read_count(raw["bytes"], document.MAX_OBJECT_BYTES)
    return QuantisedEntry(document.read_digest(raw["key"]), size, document.read_digest(raw["sha256"]))
