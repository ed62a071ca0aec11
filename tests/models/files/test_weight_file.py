"""Tensors read by position equal those that the safetensors library reads; broken headers are refused."""

from __future__ import annotations

import json
import mmap
import os
import random
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from flowedge.core.errors import CheckpointError
from flowedge.models.files.weight_file import WeightFile, check_pickle_version, open_weights
from tests.support.page_cache import cached_pages, leave_page_cache

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


PARTS: list[tuple[str, Any]] = [
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
]


def test_parts(path: Path) -> None:
    for name, index in PARTS:
        assert torch.equal(WeightFile(path)[name][index], TENSORS[name][index])


def test_only_the_rows_that_are_named_are_read(path: Path, read_sizes: list[int]) -> None:
    WeightFile(path)["stack"][2, 1:4]
    assert read_sizes == [3 * 2 * 2]


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


UNFIT: list[Any] = [
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
]


def test_a_header_that_does_not_fit_is_refused(path: Path) -> None:
    for entry in UNFIT:
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


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="only Linux drops pages when it is asked to")
@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (
            b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' + b" " * (16 << 20) + b"}",
            "more than 16 MiB",
        ),
        (b'{"a":[' + b"[]," * (4 << 20) + b"[]]}", "has more than 1048576 values"),
    ],
)
def test_a_header_is_bounded_before_it_is_parsed(path: Path, header: bytes, problem: str) -> None:
    """Its values take some twenty times as much memory as their text."""
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=problem):
            WeightFile(path)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(header)
    finally:
        tracemalloc.stop()


def test_a_pickled_file_is_mapped(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1 << 20)}, tmp_path / "new.bin")
    open_weights(tmp_path / "new.bin")["a"] += 1
    assert not open_weights(tmp_path / "new.bin")["a"].any()
    torch.save({"a": torch.ones(8)}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert open_weights(tmp_path / "old.bin")["a"][:].tolist() == [1.0] * 8


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights.{suffix}"
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=rf"weights.{suffix}: is a named pipe"):
        open_weights(path)
    with pytest.raises(CheckpointError, match="is a device"):
        open_weights(Path("/dev/zero"))


def test_the_page_cache_of_a_file_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    save_file({"matrix": torch.randn(512, 1024), "other": torch.randn(512, 1024)}, path)
    leave_page_cache(path)
    file = WeightFile(path)
    whole = file["matrix"][...]
    assert cached_pages(path) >= whole.nbytes // mmap.PAGESIZE
    deadline = time.monotonic() + 30
    while cached_pages(path) and time.monotonic() < deadline:
        file.drop_cached()  # the kernel leaves a page that it is working on itself
    assert not cached_pages(path)


B = {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]}
PLACES = {
    "good": {"a": GOOD, "b": B},
    "any order": {"b": B, "a": GOOD},
    "empty tensor": {"a": GOOD, "b": B, "e": B | {"shape": [0, 5], "data_offsets": [16, 16]}},
    "overlap": {"a": GOOD, "b": B | {"shape": [4], "data_offsets": [8, 24]}},
    "same bytes": {"a": GOOD, "b": GOOD, "c": B},
    "inside": {"a": GOOD | {"shape": [6], "data_offsets": [0, 24]}, "b": B},
    "gap": {"a": GOOD | {"shape": [2], "data_offsets": [0, 8]}, "b": B},
    "gap in front": {"b": B},
    "bytes behind": {"a": GOOD},
    "no tensors": {},
    "beyond the end": {"a": GOOD, "b": B | {"shape": [4], "data_offsets": [16, 32]}},
    "backwards": {"a": GOOD | {"shape": [0], "data_offsets": [16, 0]}, "b": B},
    "huge": {"a": GOOD | {"shape": [1 << 63, 1 << 63, 0], "data_offsets": [0, 0]}, "b": B},
    "metadata of numbers": {"__metadata__": {"a": 1}, "a": GOOD, "b": B},
    "metadata of strings": {"__metadata__": {"a": "1"}, "a": GOOD, "b": B},
    "null": {"a": GOOD | {"shape": None}, "b": B},
    "missing field": {"a": {"dtype": "F32", "shape": [4]}, "b": B},
    "spaces behind": json.dumps({"a": GOOD, "b": B}).encode() + b"    ",
    "two objects": json.dumps({"a": GOOD, "b": B}).encode() + b"{}",
    "deep": b"[" * 100_000,
    "deep value": b'{"a":' + b"[" * 100_000,
    "utf-16": json.dumps({"a": GOOD, "b": B}).encode("utf-16"),
    "not a number": json.dumps({"a": GOOD, "b": B | {"shape": [float("nan")]}}).encode(),
}


def library_accepts(path: Path) -> bool:
    try:
        with safe_open(path, "pt") as file:
            return file is not None
    except SafetensorError:
        return False


def ours_accepts(path: Path) -> bool:
    try:
        WeightFile(path).close()
    except ValueError:
        return False
    return True


def test_the_verdict_is_that_of_the_library(path: Path) -> None:
    for name, header in PLACES.items():
        write(path, header, bytes(24))
        assert ours_accepts(path) == library_accepts(path), name


@pytest.mark.parametrize(
    "header", ['{"a": %s, "b": %s, "a": %s}', '{"a": %s, "b": {"x": 1, "x": 1, "y": [%s, %s]}}']
)
def test_a_name_that_occurs_twice_is_refused(path: Path, header: str) -> None:
    good, other = json.dumps(GOOD), json.dumps(B)
    write(path, (header % (good, other, good)).encode(), bytes(24))
    with pytest.raises(ValueError, match="twice"):
        WeightFile(path)


def test_the_last_of_many_names_occurs_twice(path: Path) -> None:
    """A comparison of every name with all names before it would take hours."""
    entries = [f'"t{number}":0' for number in [*range(300_000), 299_999]]
    write(path, b"{" + ",".join(entries).encode() + b"}", b"")
    with pytest.raises(ValueError, match="'t299999' twice"):
        WeightFile(path)


def test_random_headers_that_we_accept_are_accepted_by_the_library(path: Path) -> None:
    chance, accepted = random.Random(3), 0
    for _ in range(600):
        ends = sorted(chance.randrange(0, 7) * 4 for _ in range(chance.choice((2, 3))))
        starts = [0, *ends[:-1]] if chance.random() < 0.5 else [chance.choice((0, 4, 8, end)) for end in ends]
        entries = {
            f"t{index}": {"dtype": "F32", "shape": [abs(end - start) // 4], "data_offsets": [start, end]}
            for index, (start, end) in enumerate(zip(starts, ends, strict=True))
        }
        write(path, entries, bytes(ends[-1] + chance.choice((0, 0, 0, 4))))
        assert ours_accepts(path) == library_accepts(path), entries
        accepted += ours_accepts(path)
    assert 100 < accepted < 500


@pytest.mark.parametrize(
    ("version", "safe"),
    [("2.5.1+cpu", False), ("2.6.0", True), ("2.13.0+cpu", True), ("1.13", False), ("3.0.0a0+git", True)],
)
def test_pickles_are_read_by_safe_releases_of_torch_only(version: str, safe: bool) -> None:
    if safe:
        check_pickle_version(version)
    else:
        with pytest.raises(CheckpointError, match=f"torch {re.escape(version)} does not read safely"):
            check_pickle_version(version)


def test_a_pickle_is_not_opened_by_an_unsafe_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(2)}, path)
    assert list(open_weights(path)) == ["a"]
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: .*CVE-2025-32434"):
        open_weights(path)
