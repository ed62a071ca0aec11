"""Rows whose first pages are those of others: what is read and written, and how much memory they take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from flowedge.models.host import shared_pages
from flowedge.models.host.shared_pages import SharedRows, rows_of_pages

HEADS, ROWS = 40, 640
OTHERS = set[int]()
SIZES = [(64, torch.float32), (64, torch.int8), (80, torch.bfloat16)]


def written(rows: int, size: int, dtype: torch.dtype, *, first: int = 0, seed: int = 1) -> SharedRows:
    made = SharedRows((2, HEADS, ROWS, size), dtype, "cpu")
    write(made, first, rows, seed)
    return made


def write(made: SharedRows, first: int, rows: int, seed: int) -> None:
    values = torch.randn(
        (2, HEADS, ROWS, made.tensor.shape[-1]), generator=torch.Generator().manual_seed(seed)
    )
    made.tensor[:, :, first:rows] = values.mul_(50)[:, :, first:rows].to(made.tensor.dtype)


def files() -> dict[int, int]:
    """The memory that each file of pages of this process takes, by its inode."""
    found = dict[int, int]()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # of what lists them
            if "flowedge-rows" in str(each.readlink()):
                found[each.stat().st_ino] = each.stat().st_blocks * 512
    return found


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    """Leave out the files of pipelines that tests before this one have not let go of."""
    OTHERS.update(files())
    yield
    OTHERS.clear()


def file_bytes() -> list[int]:
    """The memory that each file of this test's pages takes."""
    return sorted(size for inode, size in files().items() if inode not in OTHERS)


@pytest.mark.parametrize(("size", "dtype"), SIZES)
def test_rows_are_those_of_the_other_and_writes_are_its_own(size: int, dtype: torch.dtype) -> None:
    source = written(400, size, dtype)
    before, row_bytes = source.tensor.clone(), size * dtype.itemsize
    own = SharedRows((2, HEADS, 2 * ROWS, size), dtype, "cpu")
    shared = own.begin_as(source, 300)
    assert 300 - rows_of_pages(row_bytes) < shared <= 300 and not shared % rows_of_pages(row_bytes)
    assert torch.equal(own.tensor[:, :, :shared], before[:, :, :shared])
    assert not own.tensor[:, :, shared:].any()
    assert file_bytes() == [2 * HEADS * shared * row_bytes]
    own.tensor[1, 3, 5] = 1
    source.tensor[0, 2, 7] = 2
    source.tensor[:, :, 400:] = 3
    assert torch.equal(source.tensor[1, :, :400], before[1, :, :400])
    assert torch.equal(own.tensor[0, :, :shared], before[0, :, :shared])
    del source
    assert torch.equal(own.tensor[0, :, :shared], before[0, :, :shared])
    del own
    assert file_bytes() == []


def test_pages_are_there_as_long_as_they_are_needed() -> None:
    """A chat goes on twice, and another one begins as the chat has begun."""
    of_rows = 2 * HEADS * 256
    first = written(200, 64, torch.float32)
    second, third, other, late = (SharedRows((2, HEADS, ROWS, 64), torch.float32, "cpu") for _ in range(4))
    assert second.begin_as(first, 200) == 192
    del first
    write(second, 192, 400, seed=2)
    assert third.begin_as(second, 400) == 400
    assert file_bytes() == [400 * of_rows], "they go on in the same file"
    assert other.begin_as(second, 100) == 96
    whole = second.tensor[:, :, :400].clone()
    del second
    write(other, 96, 300, seed=3)
    assert late.begin_as(other, 300) == 288
    assert file_bytes() == [192 * of_rows, 400 * of_rows], "texts that differ have a file each"
    assert torch.equal(late.tensor[:, :, :288], other.tensor[:, :, :288])
    assert torch.equal(third.tensor[:, :, :400], whole)
    del third, other
    assert file_bytes() == [96 * of_rows, 192 * of_rows]
    assert torch.equal(late.tensor[:, :, :96], whole[:, :, :96])
    del late
    assert file_bytes() == []


def test_a_process_without_further_mappings_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(200, 64, torch.float32)
    before = source.tensor.clone()
    first, second = (SharedRows((2, HEADS, ROWS, 64), torch.float32, "cpu") for _ in range(2))
    assert first.begin_as(source, 200) == 192
    monkeypatch.setattr(shared_pages, "_most_maps", lambda: 5 * 2 * HEADS)
    assert second.begin_as(source, 200) == 0
    assert not second.tensor.any() and torch.equal(first.tensor[:, :, :192], before[:, :, :192])
    del first
    monkeypatch.setattr(shared_pages, "_most_maps", lambda: 10 * 2 * HEADS)
    assert second.begin_as(source, 200) == 192


def test_a_file_that_cannot_be_written_leaves_all_rows_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    source, own = written(200, 64, torch.float32), SharedRows((2, HEADS, ROWS, 64), torch.float32, "cpu")
    before, written_ranges, pwrite = source.tensor.clone(), iter(range(HEADS)), os.pwrite

    def fails(file: int, data: memoryview, place: int) -> int:
        if next(written_ranges, None) is None:
            raise OSError(28, "no space is left")
        return pwrite(file, data, place)

    monkeypatch.setattr(os, "pwrite", fails)
    assert own.begin_as(source, 200) == 0 and not own.tensor.any()
    monkeypatch.undo()
    assert own.begin_as(source, 200) == 0, "it is in no file as a whole"
    assert torch.equal(source.tensor, before)
    del source, own
    assert file_bytes() == []
