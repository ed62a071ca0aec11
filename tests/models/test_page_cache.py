"""What is read of a model's files stays in the page cache only where memory holds it beside the weights."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from flowedge.device.kernel_library import missing_reason
from flowedge.device.memory import AvailableMemory, lately_available, read_available_memory
from flowedge.models import loading
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.kernels.packing import LANES, packed, packed_int4, packed_int8
from flowedge.models.kernels.structures import INT4, INT8
from flowedge.models.loading import CHUNK_BYTES, load_parameter
from flowedge.models.quant.quant_cache import CacheKey, QuantCache
from flowedge.models.token_table import load_table
from tests.support.page_cache import cached_pages, leave_page_cache

needs_kernels = pytest.mark.skipif(bool(missing_reason()), reason=f"no kernels: {missing_reason()}")
EMBEDDING = "model.embed_tokens.weight"
SHAPE = (12_000, 4096)  # 94 MiB in bfloat16, more than the size from which memory is asked for
KEPT = 0.99  # of the pages; the system may take back some of them at any time
BOUND = 3 * CHUNK_BYTES // mmap.PAGESIZE  # pages: a chunk, what was read ahead, and what lies before a chunk


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    config = LlamaConfig(vocab_size=SHAPE[0], hidden_size=SHAPE[1], num_hidden_layers=1)
    config.save_pretrained(tmp_path)
    values = torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.float32).remainder(251).view(SHAPE)
    tensors = {EMBEDDING: values.bfloat16(), "model.norm.weight": torch.ones(SHAPE[1])}
    save_file(tensors, tmp_path / "model.safetensors")
    leave_page_cache(tmp_path / "model.safetensors")
    return Checkpoint(tmp_path)


class Watched:
    """The most pages of the checkpoint's file that are cached after any of its reads."""

    def __init__(self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.most = checkpoint.directory / "model.safetensors", 0
        for method in ("rows", "read_into"):
            monkeypatch.setattr(Checkpoint, method, self._counting(getattr(Checkpoint, method)))

    def _counting(self, read: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object) -> object:
            result = read(*arguments)
            self.most = max(self.most, cached_pages(self.file))
            return result

        return counted


def memory_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "lately_available", lambda: size)


def test_a_weight_for_a_gpu_is_read_through_a_bounded_buffer(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(checkpoint, monkeypatch)
    load_parameter(checkpoint, EMBEDDING, SHAPE, torch.bfloat16, torch.device("meta"))
    assert 0 < watched.most <= BOUND
    assert cached_pages(watched.file) <= BOUND // 10, "nothing is left of it"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["unchanged", "converted"])
def test_a_cpu_gives_pages_back_where_memory_is_short(
    checkpoint: Checkpoint, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, cpu = Watched(checkpoint, monkeypatch), torch.device("cpu")
    memory_of(checkpoint.stored_bytes - 1, monkeypatch)
    short = load_parameter(checkpoint, EMBEDDING, SHAPE, dtype, cpu)
    assert 0 < watched.most <= BOUND
    memory_of(checkpoint.stored_bytes, monkeypatch)
    plenty = load_parameter(checkpoint, EMBEDDING, SHAPE, dtype, cpu)
    of_weight = SHAPE[0] * SHAPE[1] * 2 // mmap.PAGESIZE
    assert cached_pages(watched.file) >= KEPT * of_weight, "the next start reads memory"
    assert torch.equal(short, plenty) and short.dtype == dtype


@needs_kernels
def test_a_packed_table_leaves_no_pages_where_memory_is_short(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_of(0, monkeypatch)
    cache = QuantCache(tmp_path / "cache", 1 << 30)
    load_table(checkpoint, EMBEDDING, torch.bfloat16, "cpu", "int8", cache)
    (stored,) = (tmp_path / "cache").glob("*.safetensors")
    assert cached_pages(checkpoint.directory / "model.safetensors") <= BOUND // 10
    leave_page_cache(stored)
    load_table(checkpoint, EMBEDDING, torch.bfloat16, "cpu", "int8", cache)
    assert cached_pages(stored) <= BOUND // 10, "a cached file is read once as well"


def test_the_cache_of_quantised_weights_gives_pages_back_when_it_is_asked_to(tmp_path: Path) -> None:
    cache, key = QuantCache(tmp_path / "cache", 1 << 30), CacheKey("a", "", "int8", "1")
    cache.put(key, {"weight": torch.zeros(1 << 22, dtype=torch.uint8)})
    leave_page_cache(cache.path(key))
    assert cache.get(key) is not None
    assert cached_pages(cache.path(key)) >= KEPT * (1 << 22) // mmap.PAGESIZE
    assert cache.get(key, gives_back=True) is not None
    assert cached_pages(cache.path(key)) <= 8


@needs_kernels
@pytest.mark.parametrize("outputs", [7 * LANES, 7 * LANES - 3], ids=["whole blocks", "a part of a block"])
def test_a_weight_is_packed_in_its_own_memory(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, with the bits of a weight that is packed at once."""
    monkeypatch.setattr("flowedge.models.kernels.packing.CHUNK_BYTES", 2 * LANES * 64)
    levels = torch.randint(0, 16, (outputs, 64), dtype=torch.uint8)
    wanted = packed(levels, INT4)
    nibbles = levels[:, ::2] << 4 | levels[:, 1::2]
    at = nibbles.data_ptr()
    assert torch.equal(found := packed_int4(nibbles), wanted)
    assert (found.data_ptr() == at) == (outputs % LANES == 0)
    weight = torch.randint(-127, 128, (outputs, 64), dtype=torch.int8)
    wanted, at = packed(weight.view(torch.uint8) ^ 128, INT8), weight.data_ptr()
    assert torch.equal(found := packed_int8(weight), wanted)
    assert (found.data_ptr() == at) == (outputs % LANES == 0)


def test_memory_is_asked_for_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def read() -> AvailableMemory:
        asked.append(None)
        return read_available_memory()

    monkeypatch.setattr("flowedge.device.memory.read_available_memory", read)
    deadline, found = time.monotonic() + 0.6, []
    while time.monotonic() < deadline:
        found.append(lately_available())
    assert 2 <= len(asked) <= 4 < len(found) and min(found) > 0
