"""A manifest that came off the network is what its hash says, and says nothing that cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowedge.core.errors import ProtocolError
from flowedge.device.disk_cache.digest import digest_of
from flowedge.weights.manifest import FileEntry, Manifest, TensorEntry, parse_manifest

DIGESTS = [f"{index:064x}" for index in range(4)]
MANIFEST = Manifest(
    DIGESTS[0],
    "none",
    (FileEntry("config.json", 10, DIGESTS[1]),),
    (TensorEntry("a", "BF16", (2, 3), 12, DIGESTS[2]), TensorEntry("b", "F32", (), 4, DIGESTS[3])),
)


def test_it_comes_back_as_it_was() -> None:
    assert parse_manifest(MANIFEST.content, MANIFEST.id) == MANIFEST
    assert MANIFEST.total_bytes == 26


def test_blocks_of_gguf_files() -> None:
    stored = TensorEntry("c", "Q4_K", (3, 2, 512), 3 * 2 * 2 * 144, DIGESTS[1])
    manifest = Manifest(DIGESTS[0], "none", (), (stored,))
    assert parse_manifest(manifest.content, manifest.id) == manifest
    for shape, size in (((3, 512), 3 * 2 * 144 + 1), ((3, 500), 3 * 2 * 144), ((512,), 2 * 144)):
        wrong = Manifest(DIGESTS[0], "none", (), (TensorEntry("c", "Q4_K", shape, size, DIGESTS[1]),))
        with pytest.raises(ProtocolError, match="cannot have"):
            parse_manifest(wrong.content, wrong.id)


def test_equal_tensors_count_once() -> None:
    twice = (*MANIFEST.tensors, TensorEntry("c", "BF16", (2, 3), 12, DIGESTS[2]))
    assert Manifest(DIGESTS[0], "none", MANIFEST.files, twice).total_bytes == 26


def test_another_content_than_its_id_says() -> None:
    with pytest.raises(ProtocolError, match="another SHA-256"):
        parse_manifest(MANIFEST.content + b" ", MANIFEST.id)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("files", 0, "name"), "../config.json"),
        (("files", 0, "name"), "/etc/passwd"),
        (("files", 0, "name"), "modeling_evil.py"),
        (("files", 0, "bytes"), 1 << 40),
        (("files", 0, "bytes"), -1),
        (("files", 0, "sha256"), "../../x"),
        (("tensors", 0, "name"), "a\nb"),
        (("tensors", 0, "name"), "b"),
        (("tensors", 0, "dtype"), "pickle"),
        (("tensors", 0, "dtype"), []),
        (("tensors", 0, "shape"), [2, 4]),
        (("tensors", 0, "shape"), [-2, -3]),
        (("tensors", 0, "shape"), [1] * 9),
        (("tensors", 0, "shape"), [2.0, 3]),
        (("tensors", 0, "bytes"), 13),
        (("tensors", 1, "sha256"), DIGESTS[2]),
        (("tensors",), {}),
        (("tensors",), None),
        (("format",), 2),
        (("fingerprint",), "x"),
    ],
)
def test_what_cannot_be_is_refused(where: tuple[Any, ...], value: Any) -> None:
    raw = json.loads(MANIFEST.content)
    inner = raw
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    data = json.dumps(raw).encode()
    with pytest.raises(ProtocolError):
        parse_manifest(data, digest_of(data))


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_manifest(data, digest_of(data))
