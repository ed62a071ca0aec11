"""A second start reads quantised weights from the disk; damaged files are noticed and made again."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.files.weight_file import WeightFile
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.int4 import Int4
from flowedge.models.quant.quant_cache import CacheKey, QuantCache
from tests.models.conftest import Make, threads_of_torch
from tests.support.fork_pool import fork_server

KEY = CacheKey("content", "", "int4", "1")
MATRICES = 7  # of a layer


@pytest.fixture
def cache(tmp_path: Path) -> QuantCache:
    return QuantCache(tmp_path / "cache", 1 << 30)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[WeightRows]:
    """Return tensors quantised to int4."""
    calls: list[WeightRows] = []
    real = Int4.encode

    def spy(backend: Int4, rows: WeightRows) -> Tensors:
        calls.append(rows)
        return real(backend, rows)

    monkeypatch.setattr(Int4, "encode", spy)
    return calls


def load(directory: Path, cache: QuantCache | None, **options: object) -> LayerBlock:
    checkpoint = Checkpoint.open(str(directory))
    return LayerBlock.load(checkpoint, 1, 2, quant="int4", quant_cache=cache, **options)  # type: ignore[arg-type]


def same(one: LayerBlock, other: LayerBlock) -> bool:
    pairs = zip(one.layers[0].parameters(), other.layers[0].parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def entries(cache: QuantCache) -> list[Path]:
    return sorted(cache.directory.glob("*.safetensors"))


def test_the_second_start_does_not_quantise(
    directory: Path, cache: QuantCache, encoded: list[WeightRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(directory, cache)
    assert len(encoded) == len(entries(cache)) == MATRICES

    def refuse(checkpoint: Checkpoint, name: str, start: int, stop: int) -> torch.Tensor:
        assert "_proj" not in name, "a matrix was read again"
        return real(checkpoint, name, start, stop)

    real = Checkpoint.rows
    monkeypatch.setattr(Checkpoint, "rows", refuse)
    again = load(directory, QuantCache(cache.directory, cache.max_bytes))
    assert len(encoded) == MATRICES
    assert same(first, again) and same(first, load(directory, cache))


def test_the_reference_takes_what_blocks_have_quantised(
    directory: Path, cache: QuantCache, encoded: list[WeightRows]
) -> None:
    """And the other way round: what --check has quantised is there for a block."""
    checkpoint = Checkpoint.open(str(directory))
    load(directory, cache)
    encoded.clear()
    cached = ReferenceModel.load(checkpoint, "int4", quant_cache=cache).model
    layers = checkpoint.config.num_hidden_layers
    assert len(encoded) == MATRICES * (layers - 1)
    plain = ReferenceModel.load(checkpoint, "int4").model
    ids = torch.arange(3, 20)[None]
    assert torch.equal(cached(ids).logits, plain(ids).logits)
    encoded.clear()
    LayerBlock.load(checkpoint, 0, layers, quant="int4", quant_cache=cache)
    assert encoded == []


@pytest.mark.parametrize("quant", ["nf4", "fp4-dq", "int8"])
def test_cached_layers_give_the_same_as_new_ones(directory: Path, cache: QuantCache, quant: str) -> None:
    checkpoint = Checkpoint.open(str(directory))
    blocks = [
        LayerBlock.load(checkpoint, 1, 2, quant=quant, quant_cache=used) for used in (None, cache, cache)
    ]
    rows = torch.randn(3, 64)
    with torch.inference_mode():
        made, stored, read = (block.layers[0].get_submodule("mlp")(rows) for block in blocks)
    assert torch.equal(made, stored) and torch.equal(made, read)


def test_entries_go_by_content(
    directory: Path, make_checkpoint: Make, cache: QuantCache, encoded: list[WeightRows], tmp_path: Path
) -> None:
    load(directory, cache)
    load(Path(shutil.copytree(directory, tmp_path / "copy")), cache)
    assert len(encoded) == MATRICES, "the same weights elsewhere were quantised again"
    load(make_checkpoint(seed=1), cache)
    assert len(encoded) == 2 * MATRICES
    load(directory, cache, dtype=torch.float16)  # rounds the weights, so it is another model
    assert len(encoded) == 3 * MATRICES


def test_a_checkpoint_that_changed_in_place(
    directory: Path, make_checkpoint: Make, cache: QuantCache, tmp_path: Path
) -> None:
    changing = Path(shutil.copytree(directory, tmp_path / "changing"))
    load(changing, cache)
    other = make_checkpoint(seed=1)
    shutil.copyfile(other / "model.safetensors", changing / "model.safetensors")
    os.utime(changing / "model.safetensors", ns=(time.time_ns(), time.time_ns() + 1))
    assert same(load(changing, cache), load(other, None))


def test_rot_of_a_checkpoint_does_not_get_into_the_cache(
    directory: Path, cache: QuantCache, tmp_path: Path
) -> None:
    """Size, inode and time stay the same, as on a failing disk; what was quantised before is still right."""
    rotten = Path(shutil.copytree(directory, tmp_path / "rotten"))
    weights, expected = rotten / "model.safetensors", load(rotten, cache)
    before, content = weights.stat(), bytearray(weights.read_bytes())
    content[WeightFile(weights)["model.layers.1.mlp.down_proj.weight"].offset + 100] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert same(load(rotten, cache), expected)
    for path in entries(cache):
        path.unlink()
    with pytest.raises(CheckpointError, match="have changed, although the file's size and time are the same"):
        load(rotten, cache)


@pytest.mark.parametrize("damage", ["flipped", "cut off", "emptied", "text"])
def test_a_damaged_entry_is_noticed_and_made_again(
    directory: Path,
    cache: QuantCache,
    encoded: list[WeightRows],
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    block = load(directory, cache)
    entry = entries(cache)[0]
    whole = entry.read_bytes()
    broken = {
        "flipped": whole[:-1] + bytes([whole[-1] ^ 1]),
        "cut off": whole[:-1],
        "emptied": b"",
        "text": b"not a file of tensors",
    }[damage]
    entry.write_bytes(broken)
    with caplog.at_level(logging.WARNING):
        assert same(block, load(directory, cache))
    assert entry.name in caplog.text and "made again" in caplog.text
    assert len(encoded) == MATRICES + 1
    assert entry.read_bytes() == whole


def test_a_damaged_note_of_the_content(
    directory: Path, cache: QuantCache, encoded: list[WeightRows], caplog: pytest.LogCaptureFixture
) -> None:
    load(directory, cache)
    for path in cache.directory.glob("*.source"):
        path.write_text("short")
    load(directory, cache)
    assert "made again" in caplog.text and len(encoded) == MATRICES


def test_what_was_not_used_for_longest_is_dropped(tmp_path: Path) -> None:
    cache = QuantCache(tmp_path / "cache", 50_000)
    keys = [CacheKey(str(index), "", "int4", "1") for index in range(5)]
    for index, key in enumerate(keys[:4]):
        cache.put(key, {"weight": torch.full((10_000,), index, dtype=torch.uint8)})
    for age, key in enumerate(keys[:4]):
        os.utime(cache.path(key), (1000 + age, 1000 + age))
    assert cache.get(keys[0]) is not None  # used now, so the second is the oldest
    cache.put(keys[4], {"weight": torch.full((10_000,), 4, dtype=torch.uint8)})
    assert [cache.get(key) is not None for key in keys] == [True, False, True, True, True]
    assert sum(path.stat().st_size for path in cache.directory.iterdir()) <= 50_000


def test_what_is_larger_than_the_cache_is_not_stored(tmp_path: Path) -> None:
    cache = QuantCache(tmp_path / "cache", 10_000)
    cache.put(KEY, {"weight": torch.zeros(10_001, dtype=torch.uint8)})
    assert cache.get(KEY) is None and not cache.directory.exists()


def test_no_cache_with_size_0(directory: Path, tmp_path: Path, encoded: list[WeightRows]) -> None:
    cache = QuantCache(tmp_path / "cache", 0)
    load(directory, cache)
    load(directory, cache)
    assert len(encoded) == 2 * MATRICES and not cache.directory.exists()


def test_a_disk_that_takes_nothing_is_a_warning(
    directory: Path, tmp_path: Path, encoded: list[WeightRows], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = QuantCache(tmp_path / "file" / "cache", 1 << 30)
    assert same(load(directory, cache), load(directory, None))
    assert caplog.text.count("no longer cached") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_a_warning(
    cache: QuantCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    monkeypatch.setattr("flowedge.models.quant.quant_cache.save_file", lambda *_: full.write_bytes(b"x"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            cache.put(KEY, {"weight": torch.zeros(8)})
    assert "No space left" in caplog.text and caplog.text.count("no longer cached") == 1
    assert list(cache.directory.iterdir()) == []


def test_files_nobody_finishes_are_removed(cache: QuantCache) -> None:
    cache.put(KEY, {"weight": torch.zeros(8)})
    old, new = cache.directory / "a.partial", cache.directory / "b.partial"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (1000, 1000))
    later = QuantCache(cache.directory, cache.max_bytes)  # which reads the directory for its first file
    later.put(CacheKey("other", "", "int4", "1"), {"weight": torch.zeros(8)})
    assert not old.exists() and new.exists()


def _use(directory: str, seed: int) -> int:
    cache, wrong = QuantCache(Path(directory), 40_000), 0
    for step in range(60):
        value = (step * 7 + seed) % 9
        key = CacheKey(str(value), "", "int4", "1")
        found = cache.get(key)
        if found is None:
            cache.put(key, {"weight": torch.full((8000,), value, dtype=torch.uint8)})
        elif not bool((found["weight"] == value).all()):
            wrong += 1
    return wrong


@pytest.mark.proof
@pytest.mark.slow
def test_processes_share_a_cache_that_is_too_small(cache: QuantCache) -> None:
    with fork_server().Pool(2) as pool:
        assert pool.starmap(_use, [(str(cache.directory), seed) for seed in range(2)]) == [0, 0]
    assert sum(path.stat().st_size for path in cache.directory.iterdir()) <= 40_000 + 8_200


def test_where_it_is_and_how_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FLOWEDGE_CACHE_DIR", "FLOWEDGE_CACHE_GIB", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert QuantCache.configured().directory == tmp_path / ".cache" / "flowedge" / "quantised"
    assert QuantCache.configured().max_bytes == 16 * 2**30
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert QuantCache.configured().directory == Path("/xdg/flowedge/quantised")
    monkeypatch.setenv("FLOWEDGE_CACHE_DIR", "/fast")
    monkeypatch.setenv("FLOWEDGE_CACHE_GIB", "0.5")
    assert QuantCache.configured().directory == Path("/fast/quantised")
    assert QuantCache.configured().max_bytes == 2**29
    assert QuantCache.configured("/given", 0).directory == Path("/given/quantised")
    assert QuantCache.configured("/given", 0).max_bytes == 0
    monkeypatch.setenv("FLOWEDGE_CACHE_GIB", "much")
    with pytest.raises(BadRequestError, match="FLOWEDGE_CACHE_GIB is 'much'"):
        QuantCache.configured()
    with pytest.raises(BadRequestError, match="0 turns it off"):
        QuantCache.configured(gib=-1)


def test_the_content_is_remembered_until_the_file_changes(cache: QuantCache, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_text("one")
    answers = iter(("a" * 64, "b" * 64))
    for expected in ("a" * 64, "a" * 64):
        assert cache.content(path, "tensor", lambda: next(answers)) == expected
    path.write_text("another")
    assert cache.content(path, "tensor", lambda: next(answers)) == "b" * 64


@pytest.mark.parametrize("quant", ["none", "int4", "w8a16"])
def test_two_threads_load_what_one_thread_loads(directory: Path, cache: QuantCache, quant: str) -> None:
    checkpoint = Checkpoint.open(str(directory))
    layers = checkpoint.config.num_hidden_layers
    blocks = []
    for threads, used in ((1, None), (2, cache), (2, cache)):  # without a cache, into it, out of it
        with threads_of_torch(threads):
            blocks.append(LayerBlock.load(checkpoint, 0, layers, quant=quant, quant_cache=used))
            assert torch.get_num_threads() == threads
    states = [[layer.state_dict() for layer in block.layers] for block in blocks]
    for state in states[1:]:
        for one, other in zip(states[0], state, strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_error_in_a_thread_names_the_tensor(directory: Path, cache: QuantCache, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(directory, tmp_path / "broken"))
    file = broken / "model.safetensors"
    name = "model.layers.1.mlp.up_proj.weight"
    with file.open("r+b") as written:
        place = WeightFile(file)[name]
        written.seek(place.offset)
        written.write(b"\xff" * 4)  # NaN in every float dtype
    with (
        threads_of_torch(2),
        pytest.raises(CheckpointError, match=f"{name} has values that are not finite"),
    ):
        load(broken, cache)
