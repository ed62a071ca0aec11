"""What a model is made of: its files and tensors, each with its SHA-256. A peer's is checked here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from flowedge.core.errors import ProtocolError
from flowedge.storage.digest import digest_of, is_digest

MAX_MANIFEST_BYTES = 64 << 20
MAX_FILE_BYTES = 256 << 20
MAX_TENSOR_BYTES = 1 << 40
MAX_TENSORS = 200_000
MAX_DIMENSIONS = 8
MAX_NAME = 512  # characters
CONFIG = "config.json"
# The only names that a manifest's files may have, and so the only ones that are ever made on a disk.
FILE_NAMES = frozenset(
    {
        CONFIG,
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
    }
)
# Bytes of an element of each dtype of a safetensors file.
ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_FORMAT = 1


@dataclass(frozen=True)
class FileEntry:
    """A small file of the model: its config, or one of its tokenizer's."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TensorEntry:
    """A stored tensor; dtype as in a safetensors file, sha256 of its bytes in row order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All of a model.

    Attributes:
        fingerprint: that of the checkpoint it was made from.
        quant: that its linear layers are stored in; "none" for most.
    """

    fingerprint: str
    quant: str
    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...]

    @cached_property
    def content(self) -> bytes:
        """As it is stored and sent: equal models have equal bytes."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def id(self) -> str:
        """SHA-256 of its content, which names the model."""
        return digest_of(self.content)

    @cached_property
    def files_by_name(self) -> Mapping[str, FileEntry]:
        return {entry.name: entry for entry in self.files}

    @cached_property
    def tensors_by_name(self) -> Mapping[str, TensorEntry]:
        return {entry.name: entry for entry in self.tensors}

    @property
    def total_bytes(self) -> int:
        """Of all files and tensors, those that are equal counted once."""
        return sum(self.sizes.values())

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The bytes of every object of the model, by digest."""
        return {entry.sha256: entry.bytes for entry in self._entries()}

    def _entries(self) -> Iterable[FileEntry | TensorEntry]:
        yield from self.files
        yield from self.tensors


def parse_manifest(data: bytes, expected_id: str) -> Manifest:
    """The manifest of an id from the bytes that somebody sent.

    ProtocolError when they are not of this id, or say anything that cannot be: names, sizes, dtypes and
    shapes are held against each other and against bounds.
    """
    if len(data) > MAX_MANIFEST_BYTES or digest_of(data) != expected_id:
        raise ProtocolError(f"what came as the manifest {expected_id} is another, or too large")
    try:
        raw = json.loads(data)
        if raw["format"] != _FORMAT:
            raise ProtocolError(f"the manifest is of format {raw['format']!r}, this device reads {_FORMAT}")
        return Manifest(
            fingerprint=_digest(raw["fingerprint"]),
            quant=_text(raw["quant"], 32),
            files=_unique(tuple(_file(entry) for entry in _list(raw["files"], len(FILE_NAMES)))),
            tensors=_unique(tuple(_tensor(entry) for entry in _list(raw["tensors"], MAX_TENSORS))),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"the manifest {expected_id} is not valid: {error!r}") from error


def _file(raw: Mapping[str, Any]) -> FileEntry:
    name = _text(raw["name"], MAX_NAME)
    if name not in FILE_NAMES:
        raise ProtocolError(f"a manifest may not have a file {name!r}")
    return FileEntry(name, _count(raw["bytes"], MAX_FILE_BYTES), _digest(raw["sha256"]))


def _tensor(raw: Mapping[str, Any]) -> TensorEntry:
    name, dtype = _text(raw["name"], MAX_NAME), raw["dtype"]
    if dtype not in ITEM_BYTES:
        raise ProtocolError(f"tensor {name} has the unknown type {dtype!r}")
    shape = tuple(_count(size, MAX_TENSOR_BYTES) for size in _list(raw["shape"], MAX_DIMENSIONS))
    size = _count(raw["bytes"], MAX_TENSOR_BYTES)
    if size != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ProtocolError(f"tensor {name} of {dtype} {list(shape)} cannot have {size} bytes")
    return TensorEntry(name, dtype, shape, size, _digest(raw["sha256"]))


def _unique(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    if len({entry.name for entry in entries}) < len(entries):
        raise ProtocolError("a name is in the manifest twice")
    sizes: dict[str, int] = {}
    for entry in entries:
        if sizes.setdefault(entry.sha256, entry.bytes) != entry.bytes:
            raise ProtocolError(f"the manifest gives {entry.sha256} two sizes")
    return entries


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise ProtocolError(f"a name of the manifest is no printable text of at most {most} characters")
    return value


def _count(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ProtocolError(f"a size of the manifest is not within 0 to {most}")
    return value


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ProtocolError(f"a list of the manifest is none, or longer than {most}")
    return value


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not is_digest(value):
        raise ProtocolError("a hash of the manifest is no SHA-256")
    return value
