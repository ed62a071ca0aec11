"""A damaged or crafted file gives an error that names it, and never more work than its size allows."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFEndian, GGUFWriter

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.gguf.header import read_header
from tests.models.tiny_families import make_tiny
from tests.support.gguf_files import finish, write_gguf

MUTATIONS = 500


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    return write_gguf(directory / "tinx.gguf", make_tiny(directory / "hf", "llama"), "Q8_0", tokenizer=None)


def test_mutations(tmp_path: Path, whole: Path) -> None:
    data, generator = whole.read_bytes(), random.Random(7)
    header = len(data) - sum(tensor.nbytes for tensor in Checkpoint.open(str(whole)).files[0].values())
    refused = 0
    for index in range(MUTATIONS):
        path = tmp_path / f"{index}.gguf"
        path.write_bytes(mutated(data, header, generator))
        try:
            checkpoint = Checkpoint.open(str(path))
            for name in checkpoint.names:
                checkpoint.tensor(name)
        except CheckpointError as error:
            refused += 1
            assert str(path) in str(error) or "model type" in str(error)
        path.unlink()
    assert refused > MUTATIONS / 4


def mutated(data: bytes, header: int, generator: random.Random) -> bytes:
    """The data with some bytes of the header changed, a number made huge, or the end cut off."""
    changed = bytearray(data)
    kind = generator.randrange(4)
    if kind == 0:
        return bytes(changed[: generator.randrange(len(data))])
    if kind == 1:
        start = generator.randrange(header - 8)
        changed[start : start + 8] = struct.pack("<Q", generator.choice([0, 1 << 63, (1 << 64) - 1, 1 << 40]))
    else:
        for _ in range(generator.choice([1, 1, 2, 8])):
            changed[generator.randrange(header)] = generator.randrange(256)
    return bytes(changed)


def simple(path: Path, **keys: Any) -> bytes:
    """The bytes of a small file with one tensor."""
    file = GGUFWriter(path, "llama")
    for key, value in keys.items():
        file.add_key_value(*value) if isinstance(value, tuple) else file.add_string(key, value)
    file.add_tensor("a", np.ones((2, 4), dtype=np.float32))
    finish(file)
    return path.read_bytes()


def test_a_whole_file(tmp_path: Path) -> None:
    simple(tmp_path / "x.gguf", name="é")
    header = read_header(tmp_path / "x.gguf")
    assert header.metadata == {"general.architecture": "llama", "name": "é"}
    assert [(tensor.name, tensor.shape, tensor.kind) for tensor in header.tensors] == [("a", (2, 4), "F32")]


IMPOSSIBLE: list[tuple[bytes, bytes, str]] = [
    (b"GGUF", b"GGML", "does not begin with GGUF"),
    (b"GGUF\x03", b"GGUF\x01", "its version is 1"),
    (b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03", "its numbers are big-endian"),
    (b"GGUF\x03\0\0\0\x01", b"GGUF\x03\0\0\0\x02", "ends too early|impossible|occurs twice|dimensions"),
    (struct.pack("<QQ", 1, 2), struct.pack("<QQ", 1 << 60, 2), "cannot hold 1152921504606846976 tensor"),
    (
        struct.pack("<QQ", 1, 2),
        struct.pack("<QQ", 1, 1 << 60),
        "cannot hold 1152921504606846976 met",
    ),
    (struct.pack("<IQQ", 2, 4, 2), struct.pack("<IQQ", 2, 4, 1 << 50), "impossible shape"),
    (struct.pack("<IQQ", 2, 4, 2), struct.pack("<IQQ", 2, 4, 3), "beyond the end of the file"),
    (struct.pack("<IQQ", 2, 4, 2), struct.pack("<IQQ", 9, 4, 2), "9 dimensions"),
    (b"llama", b"ll\xffma", "is not UTF-8"),
]


def test_arrays_are_bounded_before_they_are_read(tmp_path: Path) -> None:
    """An array of bytes would take eight times its size as numbers of Python."""
    path = tmp_path / "x.gguf"
    whole = simple(path, name="x")
    keys = struct.pack("<QQ", 1, 2)
    at = whole.index(keys) + len(keys)
    for kind, count, size in ((0, 4 << 20, 1), (8, 3 << 20, 8)):
        name, content = b"long", bytes(count * size)
        array = struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", 9, kind, count) + content
        path.write_bytes(whole[:at].replace(keys, struct.pack("<QQ", 1, 3)) + array + whole[at:])
        tracemalloc.start()
        try:
            with pytest.raises(CheckpointError, match=f"more than 2097152 values, with {count} of long"):
                read_header(path)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


def test_impossible_headers(tmp_path: Path) -> None:
    for old, new, message in IMPOSSIBLE:
        path = tmp_path / "x.gguf"
        data = simple(path, name="x")
        assert old in data
        path.write_bytes(data.replace(old, new, 1))
        with pytest.raises(CheckpointError, match=message) as raised:
            read_header(path)
        assert str(path) in str(raised.value)


def test_a_big_endian_file(tmp_path: Path) -> None:
    file = GGUFWriter(tmp_path / "x.gguf", "llama", endianess=GGUFEndian.BIG)
    file.add_tensor("a", np.ones((2, 4), dtype=np.float32))
    finish(file)
    with pytest.raises(CheckpointError, match="big-endian; convert it with gguf-convert-endian"):
        read_header(tmp_path / "x.gguf")


@pytest.mark.parametrize(("number", "name"), [(31, "Q4_0_4_4"), (34, "TQ1_0"), (99, "type 99")])
def test_types_by_name(tmp_path: Path, number: int, name: str) -> None:
    path = tmp_path / "x.gguf"
    data = simple(path)
    path.write_bytes(data.replace(struct.pack("<QI", 2, 0), struct.pack("<QI", 2, number), 1))
    assert [tensor.kind for tensor in read_header(path).tensors] == [name]


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.gguf"):
        read_header(tmp_path / "nothing.gguf")
