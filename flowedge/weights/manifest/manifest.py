"""The manifest of a model: its files and tensors, each with its SHA-256."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from flowedge.core.errors import ProtocolError
from flowedge.storage.digest import digest_of
from flowedge.weights.manifest import document

MAX_FILE_BYTES = 256 << 20
MAX_DIMENSIONS = 8
MAX_NAME = 512  # characters
CONFIG = "config.json"
# A manifest may name these files only, so no other file names are ever created on a disk.
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
# Bytes per element, by the dtype names of safetensors.
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
    """A small file of the model: its config, or a file of its tokenizer."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TensorEntry:
    """A stored tensor. `dtype` is a name of safetensors; `sha256` covers its bytes in row order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The list of everything that a model consists of."""

    fingerprint: str  # of the checkpoint that the manifest was made from
    quant: str  # the quantisation that the linear layers are stored in, mostly "none"
    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...]

    @cached_property
    def content(self) -> bytes:
        """The JSON that is stored and sent. Equal models have equal bytes."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def id(self) -> str:
        """The SHA-256 of the content, which names the model."""
        return digest_of(self.content)

    @cached_property
    def files_by_name(self) -> Mapping[str, FileEntry]:
        return {entry.name: entry for entry in self.files}

    @cached_property
    def tensors_by_name(self) -> Mapping[str, TensorEntry]:
        return {entry.name: entry for entry in self.tensors}

    @property
    def total_bytes(self) -> int:
        """Bytes of all files and tensors; equal ones count once."""
        return sum(self.sizes.values())

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of every object of the model, by digest."""
        entries: tuple[FileEntry | TensorEntry, ...] = (*self.files, *self.tensors)
        return {entry.sha256: entry.bytes for entry in entries}


def parse_manifest(data: bytes, expected_id: str) -> Manifest:
    """The manifest in received bytes, checked by `document.parse`."""
    return document.parse(data, expected_id, "manifest", _manifest)


def _manifest(raw: Mapping[str, Any]) -> Manifest:
    if raw["format"] != _FORMAT:
        raise ProtocolError(f"the manifest has format {raw['format']!r}, and this device reads {_FORMAT}")
    return Manifest(
        fingerprint=document.read_digest(raw["fingerprint"]),
        quant=document.read_text(raw["quant"], 32),
        files=_unique(tuple(_file(entry) for entry in document.read_list(raw["files"], len(FILE_NAMES)))),
        tensors=_unique(
            tuple(_tensor(entry) for entry in document.read_list(raw["tensors"], document.MAX_ENTRIES))
        ),
    )


def _file(raw: Mapping[str, Any]) -> FileEntry:
    name = document.read_text(raw["name"], MAX_NAME)
    if name not in FILE_NAMES:
        raise ProtocolError(f"a manifest may not name the file {name!r}")
    return FileEntry(
        name, document.read_count(raw["bytes"], MAX_FILE_BYTES), document.read_digest(raw["sha256"])
    )


def _tensor(raw: Mapping[str, Any]) -> TensorEntry:
    name, dtype = document.read_text(raw["name"], MAX_NAME), raw["dtype"]
    if dtype not in ITEM_BYTES:
        raise ProtocolError(f"tensor {name} has the unknown dtype {dtype!r}")
    shape = tuple(
        document.read_count(size, document.MAX_OBJECT_BYTES)
        for size in document.read_list(raw["shape"], MAX_DIMENSIONS)
    )
    size = document.read_count(raw["bytes"], document.MAX_OBJECT_BYTES)
    if size != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ProtocolError(f"tensor {name} of {dtype} {list(shape)} cannot have {size} bytes")
    return TensorEntry(name, dtype, shape, size, document.read_digest(raw["sha256"]))


def _unique(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    if len({entry.name for entry in entries}) < len(entries):
        raise ProtocolError("the manifest has two entries of one name")
    sizes: dict[str, int] = {}
    for entry in entries:
        if sizes.setdefault(entry.sha256, entry.bytes) != entry.bytes:
            raise ProtocolError(f"the manifest gives two sizes for {entry.sha256}")
    return entries
