"""The header of a safetensors file, which is untrusted data: places of tensors, and strings beside them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any, NoReturn

_LENGTH_BYTES = 8  # the size of the header's length, a little-endian integer in front of the header
# An entry takes some 100 bytes and 12 values. A quantised mixture of experts in one file has 80,000 entries.
_MAX_HEADER = 16 << 20  # bytes
_MAX_VALUES = 1 << 20  # which take some 100 bytes each, once they are parsed
_MAX_DIMENSIONS = 8
_MAX_SIZE = 1 << 40  # of one axis
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True)
class HeaderEntry:
    """The place of one tensor.

    Attributes:
        dtype: the name of the stored type.
        begin, end: the first byte, and the first byte behind the tensor, counted from the start of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """The tensors of a file in the order of the header, and the strings that it holds beside them."""

    entries: tuple[HeaderEntry, ...]
    metadata: dict[str, str]


def read_safetensors_header(descriptor: int, size: int) -> SafetensorsHeader:
    """Read and check the header of an open file of `size` bytes.

    The tensors have to fill the file without gaps and overlaps, as the format demands.

    Raises:
        ValueError: when the header is not valid.
        OSError: when the file cannot be read.
    """
    length = int.from_bytes(os.pread(descriptor, _LENGTH_BYTES, 0), "little")
    if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
        raise ValueError("it has no complete header")
    if length > _MAX_HEADER:
        raise ValueError(f"its header has {length} bytes, more than {_MAX_HEADER >> 20} MiB")
    content = os.pread(descriptor, length, _LENGTH_BYTES)
    if sum(map(content.count, (b"{", b"[", b",", b":"))) > _MAX_VALUES:
        raise ValueError(f"its header has more than {_MAX_VALUES} values")
    if not content.startswith(b"{"):
        raise ValueError("the header is no JSON object")
    header = _parse(content)
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("the header's metadata is no JSON object of strings")
    start = _LENGTH_BYTES + length
    entries = tuple(_entry(name, value, start) for name, value in header.items())
    _check_places(entries, start, size)
    return SafetensorsHeader(entries, metadata)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        # The encoding is stated: json would also take UTF-16 and UTF-32.
        header: dict[str, Any] = json.loads(
            content.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except RecursionError as error:
        raise ValueError("the header nests objects too deeply") from error
    return header


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the header names {name[:80]!r} twice")
        found[name] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _entry(name: str, value: Any, start: int) -> HeaderEntry:
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        raise ValueError(f"the header's entry of {name[:80]!r} does not have {', '.join(sorted(_FIELDS))}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise ValueError(f"the header's entry of {name[:80]!r} is not valid (type {repr(dtype)[:80]})")
    sizes = isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS and all(map(_is_size, shape))
    places = isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_size, offsets))
    if not sizes or not places or offsets[0] > offsets[1]:
        raise ValueError(
            f"the header's entry of {name[:80]!r} is not valid (shape {repr(shape)[:80]}, "
            f"offsets {repr(offsets)[:80]})"
        )
    return HeaderEntry(name, dtype, tuple(shape), start + offsets[0], start + offsets[1])


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_SIZE


def _check_places(entries: tuple[HeaderEntry, ...], start: int, size: int) -> None:
    """Check that the tensors follow each other from `start` to the end of the file."""
    position = start
    for entry in sorted(entries, key=lambda each: (each.begin, each.end)):
        if entry.begin != position:
            found = "overlaps the tensor before it" if entry.begin < position else "leaves a gap before it"
            raise ValueError(f"the header's offsets of {entry.name[:80]!r} do not fit: it {found}")
        position = entry.end
    if position != size:
        raise ValueError(f"the header's tensors end at byte {position}, and the file at byte {size}")


def check_length(entry: HeaderEntry, item_bytes: int) -> None:
    """Check that a tensor's shape and its place in the file have the same number of bytes.

    Raises:
        ValueError: when they differ.
    """
    if entry.end - entry.begin != math.prod(entry.shape) * item_bytes:
        raise ValueError(f"the header's offsets of {entry.name[:80]!r} do not fit its shape")
