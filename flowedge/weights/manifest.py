"""The manifest of a model, its files and tensors each with its SHA-256, and the list of quantised weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from flowedge.core.errors import ProtocolError
from flowedge.device.disk_cache.digest import digest_of
from flowedge.models.files.quantiser_settings import QUANTISER_FILES
from flowedge.models.gguf.block_types import BLOCK_TYPES
from flowedge.weights import manifest_document as document

MAX_FILE_BYTES = 256 << 20
MAX_DIMENSIONS = 8
MAX_NAME = 512  # characters
CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
# A manifest may name these files only, so no other file names are ever created on a disk.
FILE_NAMES = frozenset(
    {
        CONFIG,
        GENERATION_CONFIG,
        *QUANTISER_FILES,
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
_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME), document.PRINTABLE]
_Size = Annotated[int, Field(ge=0, le=document.MAX_OBJECT_BYTES)]


@dataclass(frozen=True)
class FileEntry:
    """A small file of the model: its config, or a file of its tokenizer."""

    name: Annotated[str, document.one_of(FILE_NAMES)]
    bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
    sha256: document.Digest


@dataclass(frozen=True)
class TensorEntry:
    """A stored tensor. `dtype` is a type of safetensors or GGUF; `sha256` covers its bytes in row order."""

    name: _Name
    dtype: Annotated[str, document.one_of({*ITEM_BYTES, *BLOCK_TYPES})]
    shape: Annotated[tuple[_Size, ...], Field(max_length=MAX_DIMENSIONS)]
    bytes: _Size
    sha256: document.Digest


@dataclass(frozen=True)
class Manifest:
    """The list of everything that a model consists of."""

    fingerprint: document.Digest  # of the checkpoint that the manifest was made from
    # The quantisation that the linear layers are stored in, mostly "none".
    quant: Annotated[str, Field(min_length=1, max_length=32), document.PRINTABLE]
    files: Annotated[tuple[FileEntry, ...], Field(max_length=len(FILE_NAMES))]
    tensors: Annotated[tuple[TensorEntry, ...], Field(max_length=document.MAX_ENTRIES)]
    format: Literal[1] = 1

    @cached_property
    def content(self) -> bytes:
        """The JSON that is stored and sent. Equal models have equal bytes."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

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


_MANIFEST = TypeAdapter(Manifest)
_LISTS: Mapping[str, TypeAdapter[Any]] = {
    "files": TypeAdapter(FileEntry),
    "tensors": TypeAdapter(TensorEntry),
}


def parse_manifest(data: bytes, expected_id: str) -> Manifest:
    """Return the manifest in received bytes; see `document.parse`.

    Raises:
        ProtocolError: when it is not valid.
    """

    def read(reader: document.DocumentReader) -> Manifest:
        return _MANIFEST.validate_python(reader.object_of(_LISTS))

    manifest = document.parse(data, expected_id, "manifest", read)
    for tensor in manifest.tensors:
        if tensor.bytes != _stored_bytes(tensor):
            raise ProtocolError(
                f"tensor {tensor.name} of {tensor.dtype} {tensor.shape} cannot have {tensor.bytes} bytes"
            )
    _check_unique(manifest.files)
    _check_unique(manifest.tensors)
    return manifest


def _stored_bytes(tensor: TensorEntry) -> int | None:
    """The bytes of a tensor by its type and shape; None if its rows are not whole blocks."""
    block = BLOCK_TYPES.get(tensor.dtype)
    if block is None:
        return math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
    if len(tensor.shape) < 2 or tensor.shape[-1] % block.weights:
        return None
    return math.prod(tensor.shape[:-1]) * block.row_bytes(tensor.shape[-1])


def _check_unique(entries: Sequence[FileEntry | TensorEntry]) -> None:
    if len({entry.name for entry in entries}) < len(entries):
        raise ProtocolError("the manifest has two entries of one name")
    sizes: dict[str, int] = {}
    for entry in entries:
        if sizes.setdefault(entry.sha256, entry.bytes) != entry.bytes:
            raise ProtocolError(f"the manifest gives two sizes for {entry.sha256}")


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


_ENTRY = TypeAdapter(QuantisedEntry)


def parse_quantised(data: bytes, expected_id: str) -> QuantisedList:
    """Return the list in received bytes; raises what `document.parse` raises."""
    kind = "list of quantised weights"
    return QuantisedList(document.parse(data, expected_id, kind, lambda reader: reader.list_of(_ENTRY)))
