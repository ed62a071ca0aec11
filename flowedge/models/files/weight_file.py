"""Weight files that are read by position and not mapped, so that no freed tensor stays resident."""

from __future__ import annotations

import math
import os
import pickle
import re
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from flowedge.core.errors import CheckpointError
from flowedge.models.files.safetensors_header import (
    HeaderEntry,
    check_length,
    read_safetensors_header,
)
from flowedge.text.json_object import check_is_file, errors_of_file

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
_SAFE_PICKLES = (2, 6)  # the first release of torch whose weights_only runs no code of the file
_PIECE_BYTES = (
    256 << 10
)  # read at a time where each byte is used at once, while it is in the processor's cache
_FOLIO_BYTES = 4 << 20  # of a file that the system may keep as one piece of its page cache
_MAX_READ = 1 << 30  # bytes; Linux reads a little less than 2 GiB in one call


class TensorReader(Protocol):
    """A file that tensors are read from."""

    def read_into(self, tensor: torch.Tensor, offset: int) -> None:
        """Fill a contiguous tensor with the file's bytes from `offset` on.

        Raises:
            OSError: when the file ends too early.
        """

    def drop_cached(self, offset: int, size: int) -> None:
        """Free the page cache of these bytes, see the function `drop_cached`."""


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

    def read(self, on_bytes: Callable[[memoryview], object]) -> torch.Tensor:
        """Read the whole tensor; call `on_bytes` with its bytes, a few at a time and in order.

        Raises:
            OSError: when the file ends too early.
        """
        tensor = torch.empty(self.shape, dtype=self.dtype)
        for start, piece in _pieces(tensor):
            self.file.read_into(piece, self.offset + start)
            on_bytes(byte_view(piece))
        return tensor

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

    def read_into(self, rows: torch.Tensor, start: int) -> None:
        """Fill contiguous rows of this dtype, from the tensor's row `start` on.

        Raises:
            OSError: when the file ends too early.
        """
        self.file.read_into(rows, self._offset_of(start))

    def drop_cached(self, start: int, stop: int) -> None:
        """Free the page cache of rows [start, stop), and of some bytes before them.

        The system keeps pages together that were read together, and frees no part of them.
        """
        first = max(0, self._offset_of(start) - _FOLIO_BYTES)
        self.file.drop_cached(first, self._offset_of(stop) - first)

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


def _pieces(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (first byte, uint8 view) of the parts of a contiguous tensor, in order."""
    flat = tensor.view(-1).view(torch.uint8)
    for start in range(0, len(flat), _PIECE_BYTES):
        yield start, flat[start : start + _PIECE_BYTES]


class OpenFile:
    """An open file, which is closed with the last tensor that can still be read from it.

    The tensors refer to it and it refers to none of them, so that nothing waits for a collection of cycles.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file cannot be opened."""
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.close = weakref.finalize(self, os.close, self.descriptor)

    def read_into(self, tensor: torch.Tensor, offset: int) -> None:
        """See TensorReader."""
        read_into(tensor, self.descriptor, offset, self.path)

    def drop_cached(self, offset: int, size: int) -> None:
        """See TensorReader."""
        drop_cached(self.descriptor, offset, size)


class TensorFile(Mapping[str, StoredSlice]):
    """The tensors of one open file by name, each read when it is indexed."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            CheckpointError: when the path is no regular file.
            OSError: when the file cannot be opened.
        """
        check_is_file(path)
        self.path = path
        self._file = OpenFile(path)
        self._slices: dict[str, StoredSlice] = {}

    def close(self) -> None:
        self._file.close()

    def drop_cached(self) -> None:
        """Free the page cache of the file."""
        self._file.drop_cached(0, 0)

    def __getitem__(self, name: str) -> StoredSlice:
        return self._slices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __len__(self) -> int:
        return len(self._slices)


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
        descriptor = self._file.descriptor
        header = read_safetensors_header(descriptor, os.fstat(descriptor).st_size)
        self.metadata = header.metadata
        self._slices |= {entry.name: self._checked(entry) for entry in header.entries}

    def _checked(self, entry: HeaderEntry) -> WeightSlice:
        dtype = DTYPES.get(entry.dtype)
        if dtype is None:
            name = entry.name[:80]
            raise ValueError(f"the header's entry of {name!r} has the unsupported type {entry.dtype[:80]!r}")
        check_length(entry, dtype.itemsize)
        return WeightSlice(self._file, entry.name, entry.shape, dtype, entry.begin)


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


def drop_cached(descriptor: int, offset: int = 0, size: int = 0) -> None:
    """Free the page cache of an open file's whole pages within these bytes; of all pages for a size of 0.

    Pages that are mapped or not written yet stay, and so do all where the system has no such call (macOS).
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


Weights = Mapping[str, StoredSlice] | Mapping[str, torch.Tensor]


def open_weights(path: Path) -> Weights:
    """The tensors of a .safetensors or .bin file.

    Raises:
        CheckpointError: when the file cannot be read, or holds more than tensors.
    """
    try:
        return WeightFile(path) if path.suffix == ".safetensors" else _load_bin(path)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def check_pickle_version(version: str) -> None:
    """Check that torch reads pickled tensors without running code of the file.

    Older releases than 2.6 run code in spite of `weights_only` (CVE-2025-32434).

    Args:
        version: of torch.

    Raises:
        CheckpointError: when torch is older.
    """
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < _SAFE_PICKLES:
        raise CheckpointError(
            f"it is a pickle, which torch {version} does not read safely (CVE-2025-32434); install torch 2.6 "
            "or later, or give the model as .safetensors"
        )


def _load_bin(path: Path) -> dict[str, torch.Tensor]:
    try:
        check_pickle_version(torch.__version__)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    try:
        with errors_of_file(path, "cannot be read"):
            check_is_file(path)
            # Mapped, so that memory holds what is read; torch's old format is no archive, and is read whole.
            mapped = zipfile.is_zipfile(path)
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except CheckpointError as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):
            raise CheckpointError(f"{path}: holds more than tensors and was not loaded") from error
        raise
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(f"{path}: is not a dictionary of tensors")
    if not all(isinstance(name, str) for name in state):
        raise CheckpointError(f"{path}: has tensors without names")
    return state
