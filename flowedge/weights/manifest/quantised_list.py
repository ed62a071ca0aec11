"""The list of a model's weights that a device has quantised, as it crosses the network."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property

from flowedge.storage.digest import digest_of
from flowedge.weights.manifest.document import (
    MAX_ENTRIES,
    MAX_OBJECT_BYTES,
    parse_document,
    read_count,
    read_digest,
    read_list,
)


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
    """The list in received bytes. Raises ProtocolError as `parse_document`."""

    def build(raw: object) -> QuantisedList:
        return QuantisedList(
            tuple(
                QuantisedEntry(
                    read_digest(entry["key"]),
                    read_count(entry["bytes"], MAX_OBJECT_BYTES),
                    read_digest(entry["sha256"]),
                )
                for entry in read_list(raw, MAX_ENTRIES)
            )
        )

    return parse_document(data, expected_id, "list of quantised weights", build)
