"""The list of a model's weights that a device has quantised, as it crosses the network."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated

from pydantic import Field, TypeAdapter

from flowedge.storage.digest import digest_of
from flowedge.weights.manifest import document


@dataclass(frozen=True)
class QuantisedEntry:
    """A file of a QuantCache: the digest of its key, its bytes, and their SHA-256."""

    key: document.Digest
    bytes: Annotated[int, Field(ge=0, le=document.MAX_OBJECT_BYTES)]
    sha256: document.Digest


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
        return digest_of(self.content)


_ENTRIES = TypeAdapter(Annotated[tuple[QuantisedEntry, ...], Field(max_length=document.MAX_ENTRIES)])


def parse_quantised(data: bytes, expected_id: str) -> QuantisedList:
    """The list in received bytes, checked by `document.parse`."""
    return QuantisedList(document.parse(data, expected_id, "list of quantised weights", _ENTRIES))
