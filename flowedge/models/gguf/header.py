"""The header of a GGUF file: metadata and the places of tensors. The file is untrusted data.

The reader of the `gguf` package is not used: it does not compare counts with the size of the file, so that a
crafted count keeps it busy for ever, and it makes several objects for each token of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf.constants import GGMLQuantizationType, GGUFValueType

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf.block_types import BLOCK_TYPES, FLOAT_TYPES
from flowedge.models.gguf_families.metadata import Value
from flowedge.text.json_object import check_is_file

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER = 64 << 20  # bytes; vocabularies of 300,000 tokens take about 12 MiB
# A vocabulary of 300,000 tokens has their texts, scores and kinds, and twice as many merges.
_MAX_VALUES = 2 << 20  # of all arrays together, which take some 50 bytes each
_MAX_ENTRIES = 1 << 16  # keys, and tensors
_MAX_NAME = 512  # characters of a tensor's name or a key, as in a manifest
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 20
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # of a tensor's entry without its name
_DEFAULT_ALIGNMENT = 32
_FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
# Types that llama.cpp has removed; files of the ARM types were common.
_REMOVED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
_NUMBERS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
    GGUFValueType.BOOL: "?",
}


@dataclass(frozen=True)
class GGUFTensor:
    """Where and how a file stores a tensor.

    Attributes:
        shape: the rows first, as in torch; the file has the reverse order.
        kind: the name of the tensor's type, as GGMLQuantizationType spells it.
        offset: the position of the first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int


@dataclass(frozen=True)
class GGUFHeader:
    """The metadata of a file by key, and its tensors."""

    metadata: dict[str, Value]
    tensors: tuple[GGUFTensor, ...]


def read_header(path: Path) -> GGUFHeader:
    """Read and check the header of a file.

    Raises:
        CheckpointError: when the file cannot be read or is not a valid GGUF file.
    """
    try:
        size = check_is_file(path)
        with path.open("rb", buffering=1 << 20) as file:
            return _Parser(file, size).parse()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is not a valid GGUF file: {error}") from error


class _Parser:
    """Reads one header from the start of a file of `size` bytes."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self._limit = min(size, _MAX_HEADER)
        self._position = 0
        self._values = 0  # of the arrays that were read

    def parse(self) -> GGUFHeader:
        if self._take(len(MAGIC)) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._unsigned(4)
        if version and version & 0xFFFF == 0:
            raise ValueError(
                "its numbers are big-endian; convert it with gguf-convert-endian, of the gguf package"
            )
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}; versions {_VERSIONS[0]} and {_VERSIONS[1]} are read")
        tensor_count, key_count = self._unsigned(8), self._unsigned(8)
        metadata: dict[str, Value] = {}
        for _ in range(self._entries(key_count, 8 + 4 + 1, "metadata keys")):
            key = self._name("key")
            if key in metadata:
                raise ValueError(f"the key {key} occurs twice")
            metadata[key] = self._value(self._value_type(key), key)
        tensors = [
            self._tensor() for _ in range(self._entries(tensor_count, _MIN_TENSOR_BYTES, "tensor entries"))
        ]
        return GGUFHeader(metadata, self._with_offsets(tensors, _alignment(metadata)))

    def _with_offsets(self, tensors: list[GGUFTensor], alignment: int) -> tuple[GGUFTensor, ...]:
        """The tensors with their offsets counted from the start of the file."""
        start = -(-self._position // alignment) * alignment
        placed: dict[str, GGUFTensor] = {}
        for tensor in tensors:
            if tensor.name in placed:
                raise ValueError(f"the tensor {tensor.name} occurs twice")
            offset = start + tensor.offset
            if tensor.offset % alignment:
                raise ValueError(f"the offset {tensor.offset} of {tensor.name} is not aligned to {alignment}")
            size = stored_bytes(tensor.kind, tensor.shape)
            if offset + (size or 0) > self._size:
                raise ValueError(f"the tensor {tensor.name} reaches beyond the end of the file")
            placed[tensor.name] = GGUFTensor(tensor.name, tensor.shape, tensor.kind, offset)
        return tuple(placed.values())

    def _tensor(self) -> GGUFTensor:
        name = self._name("tensor")
        dimensions = self._unsigned(4)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name} has {dimensions} dimensions")
        shape = tuple(reversed([self._unsigned(8) for _ in range(dimensions)]))
        if min(shape) < 1 or math.prod(shape) > 1 << 48:
            raise ValueError(f"the tensor {name} has the impossible shape {list(shape)}")
        number = self._unsigned(4)
        try:
            kind = GGMLQuantizationType(number).name
        except ValueError:
            kind = _REMOVED_TYPES.get(number, f"type {number}")
        block = BLOCK_TYPES.get(kind)
        if block is not None and (len(shape) < 2 or shape[-1] % block.weights):
            raise ValueError(f"the tensor {name} of {kind} has the impossible shape {list(shape)}")
        return GGUFTensor(name, shape, kind, self._unsigned(8))

    def _value_type(self, key: str) -> GGUFValueType:
        number = self._unsigned(4)
        try:
            return GGUFValueType(number)
        except ValueError as error:
            raise ValueError(f"the key {key} has a value of the unknown type {number}") from error

    def _value(self, kind: GGUFValueType, key: str) -> Value:
        if kind == GGUFValueType.STRING:
            return self._text(key)
        if kind != GGUFValueType.ARRAY:
            number = self._numbers(kind, 1)[0]
            # The shortest decimal number that is stored so, as in the config that the file was made from.
            return float(str(np.float32(number))) if kind == GGUFValueType.FLOAT32 else number
        inner, count = self._value_type(key), self._unsigned(8)
        self._values += count
        if self._values > _MAX_VALUES:
            raise ValueError(f"its arrays have more than {_MAX_VALUES} values, with {count} of {key}")
        if inner == GGUFValueType.ARRAY:
            raise ValueError(f"the key {key} has an array of arrays")
        if inner == GGUFValueType.STRING:
            return [self._text(key) for _ in range(self._count(count, 8, f"texts of {key}"))]
        return self._numbers(inner, self._count(count, np.dtype(_NUMBERS[inner]).itemsize, key))

    def _numbers(self, kind: GGUFValueType, count: int) -> list[int] | list[float] | list[bool]:
        dtype = np.dtype(_NUMBERS[kind])
        found: list[int] | list[float] | list[bool]
        found = np.frombuffer(self._take(count * dtype.itemsize), dtype=dtype).tolist()
        return found

    def _name(self, what: str) -> str:
        name = self._text(f"a {what}'s name")
        if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
            raise ValueError(f"a {what} has the impossible name {name[:80]!r}")
        return name

    def _text(self, what: str) -> str:
        length = self._unsigned(8)
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"the text of {what} is not UTF-8") from error

    def _count(self, count: int, least_bytes: int, what: str) -> int:
        """Return `count` if that many entries of `least_bytes` or more fit the rest of the header."""
        if count * least_bytes > self._limit - self._position:
            raise ValueError(f"it cannot hold {count} {what}")
        return count

    def _entries(self, count: int, least_bytes: int, what: str) -> int:
        """Return `count` if it fits the header (see `_count`) and is one that a model may have."""
        if self._count(count, least_bytes, what) > _MAX_ENTRIES:
            raise ValueError(f"it has {count} {what}, more than {_MAX_ENTRIES}")
        return count

    def _unsigned(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _take(self, count: int) -> bytes:
        if count > self._limit - self._position:
            raise ValueError(f"its header ends too early, or is longer than {_MAX_HEADER >> 20} MiB")
        data = self._file.read(count)
        if len(data) < count:
            raise ValueError("it ends in its header")
        self._position += count
        return data


def stored_bytes(kind: str, shape: tuple[int, ...]) -> int | None:
    """The bytes of a tensor; None for a type that is not supported."""
    if kind in FLOAT_TYPES:
        return math.prod(shape) * _FLOAT_BYTES[kind]
    block = BLOCK_TYPES.get(kind)
    return None if block is None else math.prod(shape[:-1]) * block.row_bytes(shape[-1])


def _alignment(metadata: dict[str, Value]) -> int:
    found = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(found) is not int or not 1 <= found <= _MAX_ALIGNMENT or found & (found - 1):
        raise ValueError(f"its alignment {found!r} is not a power of two")
    return found
