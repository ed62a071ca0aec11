"""Weight files that are read by position and not mapped, so that no freed tensor stays resident."""

from __future__ import annotations

import json
import math
import os
import pickle
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from flowedge.core.errors import CheckpointError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_TYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH_BYTES = 8  # the size of the header's length, a little-endian integer in front of the header
_MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors library
_MAX_READ = 1 << 30  # bytes; Linux reads a little less than 2 GiB in one call


class TensorReader(Protocol):
    """A file that tensors are read from."""

    def read_into(self, tensor: torch.Tensor, offset: int) -> None:
        """Fill a contiguous tensor with the file's bytes from `offset` on.

        Raises:
            OSError: when the file ends too early.
        """


class StoredSlice(Protocol):
    """One tensor of a file, which is read by indexing.

    Attributes:
        dtype: the dtype of what is read; type_name: the name of the stored type in a manifest.
        offset: the position of the tensor's first byte in the file; nbytes: the number of its bytes there.
        blocks: the tensor as it is stored, with the same rows.
    """

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def type_name(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def blocks(self) -> WeightSlice: ...

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read the selected part; of the first axis only the selected rows are read."""


@dataclass(frozen=True)
class WeightSlice:
    """One tensor of a file that holds its elements in a dtype of torch.

    Attributes:
        offset: the position of the tensor's first byte in the file.
    """

    file: TensorReader
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    def __getitem__(self, index: Any) -> torch.Tensor:
        leading, *inner = index if isinstance(index, tuple) else (index,)
        if self.shape and isinstance(leading, int):
            wanted = range(self.shape[0])[leading]
            row = WeightSlice(self.file, self.name, self.shape[1:], self.dtype, self._offset_of(wanted))
            return row[tuple(inner) or ...]
        if self.shape and isinstance(leading, slice) and leading.step in (None, 1):
            start, stop, _ = leading.indices(self.shape[0])
            rows = self._read((max(0, stop - start), *self.shape[1:]), self._offset_of(start))
            within = (slice(None), *inner)
            return rows[within]
        return self._read(self.shape, self.offset)[index]

    @property
    def type_name(self) -> str:
        return _TYPE_NAMES[self.dtype]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def blocks(self) -> WeightSlice:
        return self

    def _offset_of(self, row: int) -> int:
        return self.offset + row * math.prod(self.shape[1:]) * self.dtype.itemsize

    def _read(self, shape: tuple[int, ...], offset: int) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=self.dtype)
        self.file.read_into(tensor, offset)
        return tensor


def byte_view(tensor: torch.Tensor) -> memoryview:
    """A view of the bytes of a contiguous CPU tensor, in row order."""
    array: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(array)


class TensorFile(Mapping[str, StoredSlice]):
    """The tensors of one open file by name, each read when it is indexed."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            OSError: when the file cannot be opened.
        """
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._slices: dict[str, StoredSlice] = {}

    def close(self) -> None:
        self._close()

    def __getitem__(self, name: str) -> StoredSlice:
        return self._slices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __len__(self) -> int:
        return len(self._slices)

    def read_into(self, tensor: torch.Tensor, offset: int) -> None:
        read_into(tensor, self._descriptor, offset, self.path)


class WeightFile(TensorFile):
    """The tensors of one safetensors file.

    Attributes:
        metadata: the strings that the file holds beside its tensors.
    """

    def __init__(self, path: Path) -> None:
        """Open the file and read its header.

        Raises:
            ValueError: when the file is not a valid safetensors file.
            OSError: when the file cannot be opened.
        """
        super().__init__(path)
        size = os.fstat(self._descriptor).st_size
        header, data_start = self._read_header(size)
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            raise ValueError("the header's metadata is no JSON object")
        self.metadata: dict[str, str] = {str(key): str(value) for key, value in metadata.items()}
        self._slices |= {
            name: self._checked(name, entry, data_start, size - data_start) for name, entry in header.items()
        }

    def _read_header(self, size: int) -> tuple[dict[str, Any], int]:
        length = int.from_bytes(os.pread(self._descriptor, _LENGTH_BYTES, 0), "little")
        if size < _LENGTH_BYTES or length > min(_MAX_HEADER, size - _LENGTH_BYTES):
            raise ValueError("it has no complete header")
        header = json.loads(os.pread(self._descriptor, length, _LENGTH_BYTES))
        if not isinstance(header, dict):
            raise ValueError("the header is no JSON object")
        return header, _LENGTH_BYTES + length

    def _checked(self, name: str, entry: Any, data_start: int, data_size: int) -> WeightSlice:
        """Check a header entry against the file's size and the tensor's, since the file is untrusted data."""
        try:
            type_name, sizes, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"the header's entry of {name} is not valid") from error
        numbers = [begin, end, *sizes] if isinstance(sizes, list) else [None]
        known = isinstance(type_name, str) and type_name in DTYPES
        if not known or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"the header's entry of {name} is not valid (type {type_name!r})")
        dtype = DTYPES[type_name]
        if end > data_size or end - begin != math.prod(sizes) * dtype.itemsize:
            raise ValueError(f"the header's offsets of {name} do not fit")
        return WeightSlice(self, name, tuple(sizes), dtype, data_start + begin)


def read_into(tensor: torch.Tensor, descriptor: int, offset: int, path: Path) -> None:
    """Fill a contiguous tensor from an open file, beginning at the byte `offset`.

    Raises:
        OSError: when the file ends too early; the message names `path`.
    """
    if not tensor.nbytes:
        return
    view = byte_view(tensor)
    while view:
        count = os.preadv(descriptor, [view[:_MAX_READ]], offset)
        if count == 0:
            raise OSError(f"{path} ends before byte {offset + len(view)}")
        offset += count
        view = view[count:]


def drop_cached_pages(path: Path) -> None:
    """Free the page cache of a file, where the system can do that."""
    if hasattr(os, "posix_fadvise"):  # not on macOS
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


Weights = Mapping[str, StoredSlice] | Mapping[str, torch.Tensor]


def open_weights(path: Path) -> Weights:
    """The tensors of a .safetensors or .bin file."""
    try:
        return WeightFile(path) if path.suffix == ".safetensors" else _load_bin(path)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _load_bin(path: Path) -> dict[str, torch.Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path}: holds more than tensors and was not loaded") from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(f"{path}: is not a dictionary of tensors")
    return state
