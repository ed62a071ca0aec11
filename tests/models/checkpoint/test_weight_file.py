"""Tensors read by position equal those that the safetensors library reads; broken headers are refused."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from flowedge.models.checkpoint.weight_file import WeightFile, drop_cached_pages

TENSORS = {
    "matrix": torch.randn(7, 5),
    "half": torch.randn(3, 4).half(),
    "stack": torch.randn(4, 6, 2).bfloat16(),
    "bytes": torch.arange(9, dtype=torch.uint8),
    "signed": torch.arange(-4, 4, dtype=torch.int8).view(2, 4),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 3),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "file.safetensors", {"purpose": "test"})
    return tmp_path / "file.safetensors"


def test_it_reads_what_the_library_reads(path: Path) -> None:
    file = WeightFile(path)
    assert set(file) == set(TENSORS) and len(file) == len(TENSORS)
    assert file.metadata == {"purpose": "test"}
    with safe_open(path, "pt") as library:
        for name, stored in file.items():
            expected = library.get_tensor(name)
            assert tuple(stored.shape) == tuple(expected.shape) and stored.dtype == expected.dtype
            assert torch.equal(stored[...], expected)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("matrix", 3),
        ("matrix", -1),
        ("matrix", slice(2, 5)),
        ("matrix", slice(None)),
        ("matrix", slice(5, 2)),
        ("matrix", slice(None, None, 2)),
        ("matrix", (slice(1, 3), 2)),
        ("matrix", (slice(1, 3), slice(0, 2))),
        ("stack", (2, slice(1, 4))),
        ("stack", (2, slice(1, 4), 0)),
        ("stack", (1, 2, 1)),
        ("empty", slice(0, 3)),
    ],
)
def test_parts(path: Path, name: str, index: Any) -> None:
    assert torch.equal(WeightFile(path)[name][index], TENSORS[name][index])


def test_only_the_rows_that_are_named_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = WeightFile.read_into

    def spy(file: WeightFile, tensor: torch.Tensor, offset: int) -> None:
        read.append(tensor.nbytes)
        real(file, tensor, offset)

    monkeypatch.setattr(WeightFile, "read_into", spy)
    WeightFile(path)["stack"][2, 1:4]
    assert read == [3 * 2 * 2]


def test_what_was_read_outlives_the_file(path: Path) -> None:
    file = WeightFile(path)
    tensor = file["matrix"][...]
    file.close()
    path.unlink()
    assert torch.equal(tensor, TENSORS["matrix"])


def test_a_file_that_was_cut_off_later(path: Path) -> None:
    file = WeightFile(path)
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(OSError, match="ends before"):
        for stored in file.values():
            stored[...]


def write(path: Path, header: Any, data: bytes = bytes(16)) -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def test_a_header_written_by_hand(path: Path) -> None:
    write(path, {"a": GOOD})
    assert torch.equal(WeightFile(path)["a"][...], torch.zeros(2, 2))


@pytest.mark.parametrize(
    "entry",
    [
        GOOD | {"data_offsets": [0, 32]},
        GOOD | {"data_offsets": [4, 20]},
        GOOD | {"data_offsets": [-16, 0]},
        GOOD | {"data_offsets": [0]},
        GOOD | {"shape": [2, 3]},
        GOOD | {"shape": [-2, -2]},
        GOOD | {"shape": "22"},
        GOOD | {"shape": [True, 4]},
        GOOD | {"dtype": "F7"},
        GOOD | {"dtype": ["F32"]},
        {"dtype": "F32"},
        3,
    ],
)
def test_a_header_that_does_not_fit_is_refused(path: Path, entry: Any) -> None:
    write(path, {"a": entry})
    with pytest.raises(ValueError, match="the header's"):
        WeightFile(path)


@pytest.mark.parametrize("header", [b"[]", b"{", b"\xff\xfe", {"__metadata__": 3}])
def test_a_header_that_is_none_is_refused(path: Path, header: Any) -> None:
    write(path, header)
    with pytest.raises(ValueError, match=r".*"):
        WeightFile(path)
    path.write_bytes((1 << 40).to_bytes(8, "little"))
    with pytest.raises(ValueError, match="no complete header"):
        WeightFile(path)


def cached_pages(path: Path) -> int:
    """Return the number of a file's pages in the page cache."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), found) == 0
        return sum(page & 1 for page in found)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="only Linux drops pages when it is asked to")
def test_the_page_cache_of_a_file_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    save_file({"matrix": torch.randn(512, 1024), "other": torch.randn(512, 1024)}, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())  # pages that are not written yet are not dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(path):
        pytest.skip("the file system has no page cache to drop, as tmpfs")
    whole = WeightFile(path)["matrix"][...]
    assert cached_pages(path) >= whole.nbytes // mmap.PAGESIZE
    drop_cached_pages(path)
    assert not cached_pages(path)
