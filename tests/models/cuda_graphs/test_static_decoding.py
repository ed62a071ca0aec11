"""Static forwards compute what a block computes layer by layer, for any history of a session."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowedge.core.errors import CapacityError, ProtocolError
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs.held_forwards import MOST_FORWARDS, UNUSED_FORWARDS
from flowedge.models.cuda_graphs.recording import PieceFunction, Recording
from flowedge.models.cuda_graphs.static_decoding import (
    BlockDecoding,
    capture_decoding,
    unsuited,
)
from tests.models.conftest import Make
from tests.models.cuda_graphs.static_pipeline import (
    CountingMaker,
    RefusingMaker,
    decode_statically,
    static_pipeline,
)
from tests.models.exact.test_exact_block import PRECISIONS
from tests.models.pipeline import History, Pipeline, never
from tests.models.tiny_families import make_tiny
from tests.support.breadth import dealt_diagonally
from tests.support.kernels import exact_by_torch

CAPACITY = 700


@pytest.fixture(autouse=True)
def computed_by_torch() -> Iterator[None]:
    """The kernels' rows are tested in tests/models/kernels."""
    with exact_by_torch():
        yield


def check(
    checkpoint: Checkpoint, seed: int, *, exact: bool, prompt: int = 230, rounds: int = 5, **load: Any
) -> None:
    """Draft and prune at random, on static blocks and on others; compare all rows and all caches."""
    static, makers = static_pipeline(checkpoint, 2, CAPACITY, exact=exact, **load)
    eager = Pipeline(checkpoint, 2, CAPACITY, exact=exact, **load)
    histories = [History(pipeline, seed, prompt) for pipeline in (static, eager)]
    runs = 0
    for _ in range(rounds):
        got, expected = (history.draft(most=24)[1] for history in histories)
        assert all(maker.runs > runs for maker in makers)
        runs = makers[0].runs
        assert_same(got, expected, exact)
        for own, other in zip(static.caches, eager.caches, strict=True):
            assert_same(own.kv[:, :, :, : static.cached], other.kv[:, :, :, : eager.cached], exact)
        if histories[0].rng.random() < 0.7:
            histories[1].rng.random()
            for history in histories:
                history.prune()
        else:
            histories[1].rng.random()


def assert_same(got: torch.Tensor, expected: torch.Tensor, exact: bool) -> None:
    if exact:
        assert torch.equal(got, expected)
    else:
        torch.testing.assert_close(got, expected, atol=3e-4, rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_histories_across_buckets(directory: Path, seed: int) -> None:
    check(Checkpoint(directory), seed, exact=False, prompt=(60, 240, 250)[seed], dtype=torch.float32)


@pytest.mark.parametrize(
    ("precision", "prompt"), dealt_diagonally(("fp32", "bf16", "int4", "bf16-kv8"), (40, 245), one_in=2)
)
def test_exact_histories_have_the_same_bits(make_checkpoint: Make, precision: str, prompt: int) -> None:
    checkpoint = Checkpoint(make_checkpoint(head_dim=32, seed=1))
    check(checkpoint, 1, exact=True, prompt=prompt, rounds=4, **PRECISIONS[precision])


@pytest.mark.parametrize(
    ("name", "exact"),
    dealt_diagonally(("gemma2", "gemma3", "mistral", "granite"), (False, True), one_in=2),
)
def test_histories_of_families(name: str, exact: bool, tmp_path: Path) -> None:
    dtype = torch.bfloat16 if exact else torch.float32
    check(Checkpoint(make_tiny(tmp_path, name)), 2, exact=exact, prompt=130, rounds=3, dtype=dtype)


def chain(context: int, rows: int) -> dict[str, Any]:
    """The arguments of a forward of `rows` committed rows behind `context` rows."""
    return {
        "positions": np.arange(context, context + rows),
        "cached": context,
        "context": context,
        "tail_parents": np.array([-1, *range(context, context + rows - 1)]),
        "should_abort": never,
    }


def tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 97, count))


def forward(
    block: LayerBlock, inputs: torch.Tensor, cache: KVCache, context: int = 0, **changes: Any
) -> torch.Tensor:
    """Rows of a forward of committed rows, which is not aborted."""
    rows = block.forward(inputs, cache=cache, **(chain(context, len(inputs)) | changes))
    assert rows is not None
    return rows


def load(directory: Path, **options: Any) -> LayerBlock:
    return LayerBlock.load(Checkpoint(directory), 0, 4, **options)


def test_rows_of_padding_change_nothing(directory: Path) -> None:
    block, eager = load(directory), load(directory)
    maker = decode_statically(block)
    for rows in (1, 2, 8, 9, 33, 64):
        cache, other = block.new_cache(100), eager.new_cache(100)
        got = forward(block, tokens(rows), cache)
        expected = forward(eager, tokens(rows), other)
        assert got.shape == expected.shape
        assert_same(got, expected, exact=False)
        assert_same(cache.kv[:, :, :, :rows], other.kv[:, :, :, :rows], exact=False)
        assert not cache.kv[:, :, :, rows:].any(), "padding is written to the scratch row alone"
        del cache
    assert maker.runs == 6


def test_rows_after_a_result_do_not_change_it(directory: Path) -> None:
    block = load(directory)
    decode_statically(block)
    cache = block.new_cache(100)
    first = forward(block, tokens(8), cache)
    copy = first.clone()
    forward(block, tokens(8, seed=1), cache, 8)
    assert torch.equal(first, copy)


def test_tapped_layers(directory: Path) -> None:
    block, eager = load(directory), load(directory)
    decode_statically(block)
    for taps in ((0, 2), (3,), ()):
        got = forward(block, tokens(5), block.new_cache(100), taps=taps)
        expected = forward(eager, tokens(5), eager.new_cache(100), taps=taps)
        assert_same(got, expected, exact=False)


def test_blocks_of_hidden_rows(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    block, eager = (LayerBlock.load(checkpoint, 2, 3) for _ in range(2))
    decode_statically(block)
    hidden = torch.randn((3, 64), generator=torch.Generator().manual_seed(0))
    got = forward(block, hidden, block.new_cache(100))
    expected = forward(eager, hidden, eager.new_cache(100))
    assert_same(got, expected, exact=False)


def test_sessions_take_turns_and_reuse_the_caches_of_ended_sessions(directory: Path) -> None:
    """Sessions of one size have the static forwards of the sessions before, and none of their content."""
    block, eager = load(directory), load(directory)
    maker = decode_statically(block)
    made = []
    for generation in range(3):
        caches = [block.new_cache(200 + 10 * index) for index in range(3)]
        others = [eager.new_cache(300) for _ in caches]
        assert not any(cache.kv.any() for cache in caches)
        for step in range(4):
            for index, (cache, other) in enumerate(zip(caches, others, strict=True)):
                inputs = tokens(6, seed=100 * generation + 10 * index + step)
                got = forward(block, inputs, cache, 6 * step)
                expected = forward(eager, inputs, other, 6 * step)
                assert_same(got, expected, exact=False)
        made.append(maker.made)
        held = block.decoding_bytes
        del caches, cache
        assert block.decoding_bytes > held, "the caches wait for the next sessions, and are counted"
    assert made == [3, 3, 3]


def test_idle_caches_are_freed_before_a_cache_of_another_size(directory: Path) -> None:
    block = load(directory)
    decode_statically(block)
    cache = block.new_cache(200)
    forward(block, tokens(6), cache)
    store = weakref.ref(cache.store)
    del cache
    assert store() is not None
    larger = block.new_cache(2000)
    assert store() is None
    assert larger.store.kv.shape[3] <= 2000 * 1.25 + 1
    assert larger.nbytes <= 2000 * block.cache_row_bytes + larger.store.kv[:, :, :, :1].nbytes


def test_memory_that_runs_out_frees_what_can_be_made_again(directory: Path) -> None:
    block = load(directory)
    maker = decode_statically(block)
    cache = block.new_cache(200)
    first = forward(block, tokens(6), cache)
    idle = block.new_cache(200)
    store = weakref.ref(idle.store)
    del idle
    assert block.decoding is not None
    block.decoding.free()
    assert block.decoding_bytes == 0
    assert store() is None
    again = forward(block, tokens(6), cache)
    assert torch.equal(first, again)
    assert maker.made == 2


def test_a_block_is_freed_at_once(directory: Path) -> None:
    block = load(directory)
    decode_statically(block)
    cache = block.new_cache(200)
    forward(block, tokens(6), cache)
    parts = [weakref.ref(part) for part in (block, block.layers[0], block.decoding, cache.store)]
    gc.disable()
    try:
        del cache, block
        assert [part() for part in parts] == [None] * 4
    finally:
        gc.enable()


def test_only_forwards_that_are_no_longer_used_give_way(directory: Path) -> None:
    block = load(directory)
    maker = decode_statically(block)
    caches = [block.new_cache(100) for _ in range(MOST_FORWARDS + 1)]
    for _ in range(2):  # sessions in turns: the last one is computed layer by layer
        for cache in caches:
            forward(block, tokens(1), cache)
        assert maker.made == MOST_FORWARDS
    for _ in range(UNUSED_FORWARDS - MOST_FORWARDS):
        block.forward(tokens(1), cache=caches[1], **chain(0, 1))
    block.forward(tokens(1), cache=caches[-1], **chain(0, 1))
    assert maker.made == MOST_FORWARDS + 1
    block.forward(tokens(1), cache=caches[1], **chain(0, 1))
    assert maker.made == MOST_FORWARDS + 1, "the one that was used last is held"


def test_an_abort_comes_between_pieces(make_checkpoint: Make) -> None:
    directory = make_checkpoint(num_hidden_layers=10)
    block = LayerBlock.load(Checkpoint(directory), 0, 10)
    maker = decode_statically(block)
    cache = block.new_cache(100)
    asked: list[int] = []

    def after_two_pieces() -> bool:
        asked.append(1)
        return len(asked) > 2

    arguments = chain(0, 6) | {"should_abort": after_two_pieces}
    assert block.forward(tokens(6), cache=cache, **arguments) is None
    assert (len(asked), maker.made, maker.runs) == (3, 3, 2)
    assert cache.kv[7, 0, :, :6].any()
    assert not cache.kv[8, 0, :, :6].any()
    again = forward(block, tokens(6), cache)
    fresh = forward(block, tokens(6), block.new_cache(100))
    assert torch.equal(again, fresh)


def test_a_shape_is_captured_when_it_comes_again(directory: Path) -> None:
    block = load(directory)
    maker = decode_statically(block, uncaptured=1)
    cache = block.new_cache(100)
    for context, made in ((0, 0), (6, 1), (12, 1)):
        forward(block, tokens(6), cache, context)
        assert maker.made == made


def test_what_has_no_static_shape_is_computed_layer_by_layer(directory: Path) -> None:
    block, plain = load(directory), load(directory)
    maker = decode_statically(block)
    forward(block, tokens(65), block.new_cache(100))
    forward(block, tokens(5), plain.new_cache(100))
    wide = chain(0, 1) | {
        "positions": np.array([0]),
        "cached": 600,
        "tail_parents": np.full(601, -1),
    }
    cache = block.new_cache(700)
    forward(block, tokens(1), cache, **wide)
    assert maker.runs == 0


def test_a_device_that_cannot_record_says_so_once(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    block, eager = load(directory), load(directory)
    block.decoding = BlockDecoding(block, RefusingMaker(), uncaptured=0)
    cache, other = block.new_cache(100), eager.new_cache(100)
    with caplog.at_level(logging.WARNING):
        for context in (0, 6):
            got = forward(block, tokens(6), cache, context)
            expected = forward(eager, tokens(6), other, context)
            assert_same(got, expected, exact=False)
    (record,) = caplog.records
    assert "layers 0 to 3 run without CUDA graphs" in record.message
    assert "(operation not permitted when stream is capturing)" in record.message


class LackingMaker(CountingMaker):
    """Makes pieces, but memory runs out at its first attempt, and the capture that was begun then fails."""

    attempts = 0

    def make(self, functions: Sequence[PieceFunction]) -> list[Recording]:
        self.attempts += 1
        if self.attempts > 1:
            return super().make(functions)
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        finally:
            raise RuntimeError("capture was invalidated")


def test_memory_that_runs_out_in_a_capture_puts_captures_off(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    block, maker = load(directory), LackingMaker()
    block.decoding = BlockDecoding(block, maker, uncaptured=0)
    cache = block.new_cache(100)
    with caplog.at_level(logging.WARNING):
        for forwards in range(UNUSED_FORWARDS):
            forward(block, tokens(1), cache)
            assert maker.attempts == 1, forwards
        forward(block, tokens(1), cache)
    assert maker.attempts == 2
    assert maker.runs == 1
    assert not block.decoding.failure
    (record,) = caplog.records
    assert f"without CUDA graphs for the next {UNUSED_FORWARDS} forwards" in record.message


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"cached": 98, "context": 98, "positions": np.arange(98, 104)}, CapacityError, "cache of 100 rows"),
        ({"tail_parents": np.array([-1, 9, 1, 2, 3, 4])}, ProtocolError, "earlier slot"),
    ],
)
def test_bad_arguments_are_refused(
    directory: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    block = load(directory)
    maker = decode_statically(block)
    with pytest.raises(error, match=message):
        block.forward(tokens(6), cache=block.new_cache(100), **(chain(0, 6) | changes))
    assert maker.made == 0


@pytest.mark.parametrize(
    ("name", "reason"), [("mixtral", "experts"), ("phi3-longrope", "rotary"), ("llama", "")]
)
def test_blocks_that_are_unsuited(name: str, reason: str, tmp_path: Path) -> None:
    block = LayerBlock.load(Checkpoint(make_tiny(tmp_path, name)), 0, 2)
    assert reason in unsuited(block)
    assert bool(reason) == bool(unsuited(block))


def test_a_block_on_a_cpu_records_nothing(directory: Path) -> None:
    block = load(directory)
    capture_decoding(block)
    assert block.decoding is None
