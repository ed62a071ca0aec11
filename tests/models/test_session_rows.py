"""Rows of several sessions in one forward, against the same rows of each session alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowedge.core.errors import CapacityError, FlowEdgeError, ProtocolError
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.kernels import block as native_block
from flowedge.models.row_counts import ANY_COUNT, RowCounts
from flowedge.models.session_rows import SessionRows, batches
from tests.models.conftest import Make, threads_of_torch
from tests.models.tiny_families import LAYERS, TINY, VOCAB, make_tiny
from tests.support.breadth import dealt_diagonally
from tests.support.kernels import RUNNING, exact_by_torch

CAPACITY = 240
CONTEXTS = (3, 70, 131, 64)  # of the sessions
TREE, CHAIN = (-1, 0, 0, 1, 3, -1, 2), (-1, 0, 1)
TAILS = (TREE, CHAIN, (-1,))  # what the sessions draft: parents within the tail
KERNELS = pytest.mark.skipif(not RUNNING, reason="there are no kernels for this CPU")
EXACT_FAMILIES = (
    "llama",
    "mistral",
    "gemma3",
    "mixtral",
    "qwen3_moe",
    "phi3-longrope",
    "llama-dynamic",
    "qwen3_5",
)
DTYPES = (torch.float32, torch.bfloat16)
FORMATS: dict[str, dict[str, Any]] = {
    "int8-bf16": {"quant": "int8", "dtype": torch.bfloat16},
    "int8-fp32": {"quant": "int8", "dtype": torch.float32},
    "int4-bf16": {"quant": "int4", "dtype": torch.bfloat16},
    "int4-fp32-kv8": {"quant": "int4", "dtype": torch.float32, "kv": "int8"},
    "bf16-kv8": {"dtype": torch.bfloat16, "kv": "int8"},
    "fp32-kv8": {"dtype": torch.float32, "kv": "int8"},
}


def never() -> bool:
    return False


class Sessions:
    """Sessions of a block whose rows are computed together, or one session after the other."""

    def __init__(self, block: LayerBlock, contexts: Sequence[int] = CONTEXTS) -> None:
        self.block = block
        self.caches = [block.new_cache(CAPACITY) for _ in contexts]
        rng = np.random.default_rng(5)
        self.texts = [rng.integers(0, VOCAB, CAPACITY) for _ in contexts]
        self.contexts = contexts

    def inputs(self, session: int, start: int, stop: int) -> torch.Tensor:
        tokens = torch.from_numpy(self.texts[session][start:stop])
        if self.block.is_first:
            return tokens
        generator = torch.Generator().manual_seed(3)
        table = torch.randn((VOCAB, self.block.hidden_size), generator=generator).to(self.block.dtype)
        return table[tokens]

    def prompts(self) -> list[SessionRows]:
        return [
            SessionRows(
                self.inputs(index, 0, context), np.arange(context), cache, 0, 0, np.arange(context) - 1
            )
            for index, (context, cache) in enumerate(zip(self.contexts, self.caches, strict=True))
        ]

    def drafts(self) -> list[SessionRows]:
        return [self.draft(index, TAILS[index % len(TAILS)]) for index in range(len(self.contexts))]

    def draft(self, index: int, tail: Sequence[int]) -> SessionRows:
        """A draft tail of a session behind its prompt."""
        context = self.contexts[index]
        parents = np.array([-1 if parent == -1 else context + parent for parent in tail])
        depths: list[int] = []
        for parent in tail:
            depths.append(0 if parent == -1 else depths[parent] + 1)
        positions = context + np.array(depths)
        stop = context + len(tail)
        return SessionRows(
            self.inputs(index, context, stop), positions, self.caches[index], context, context, parents
        )

    def alone(self, parts: Sequence[SessionRows], taps: Sequence[int] = ()) -> list[torch.Tensor]:
        found = []
        for part in parts:
            rows = self.block.forward(
                part.inputs,
                part.positions,
                part.cache,
                part.cached,
                part.context,
                part.tail_parents,
                never,
                taps,
            )
            assert rows is not None
            found.append(rows)
        return found

    def together(self, parts: Sequence[SessionRows], taps: Sequence[int] = ()) -> list[torch.Tensor]:
        found = self.block.forward_together(parts, never, taps)
        assert found is not None
        return found


def begun(sessions: Sessions) -> list[SessionRows]:
    """The first half of each draft tail, or the whole of one row."""
    return [part.cut(0, max(1, part.count // 2)) for part in sessions.drafts()]


def ended(sessions: Sessions) -> list[SessionRows]:
    """The rest of each draft tail, whose first half is cached; in the opposite order."""
    drafts = reversed(sessions.drafts())
    return [part.cut(max(1, part.count // 2), part.count) for part in drafts if part.count > 1]


def check(block: LayerBlock, same: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
    """Compare prompts, of more rows than a product has, and draft tails behind them."""
    taps = (block.start, block.stop - 1)
    alone, together = Sessions(block), Sessions(block)
    for steps in (Sessions.prompts, Sessions.drafts, begun, ended):
        wanted = alone.alone(steps(alone), taps)
        found = together.together(steps(together), taps)
        assert [len(rows) for rows in found] == [len(rows) for rows in wanted]
        for own, other in zip(found, wanted, strict=True):
            assert same(own, other)
    for caches in zip(together.caches, alone.caches, strict=True):
        for layer in range(len(block.cached_layers)):
            own, other = (store.kv[index] for store, index in (each.store.store_of(layer) for each in caches))
            assert same(own, other)


def within_rounding(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    scale = float(wanted.float().abs().max())
    tolerance = 3e-5 if wanted.dtype == torch.float32 else 0.05
    return torch.allclose(found.float(), wanted.float(), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.one_in(2)
@KERNELS
@pytest.mark.parametrize(("name", "dtype"), dealt_diagonally(EXACT_FAMILIES, DTYPES, one_in=2))
def test_kernels_give_rows_the_same_bits_beside_other_sessions(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(make_tiny(tmp_path, name))
    for start in (0, 1):
        block = LayerBlock.load(checkpoint, start, LAYERS, dtype=dtype, exact=True)
        assert block.kernels is not None
        check(block, torch.equal)


@KERNELS
@pytest.mark.parametrize(
    ("kind", "threads"),
    dealt_diagonally(("int8-bf16", "int4-bf16", "int4-fp32-kv8", "bf16-kv8"), (1, 3), one_in=2),
)
def test_kernels_in_every_format(kind: str, threads: int, make_checkpoint: Make) -> None:
    checkpoint = Checkpoint(make_checkpoint(head_dim=32, vocab_size=VOCAB))
    block = LayerBlock.load(checkpoint, 0, 4, exact=True, **FORMATS[kind])
    assert block.kernels is not None
    with threads_of_torch(threads):
        check(block, torch.equal)


@pytest.fixture
def torch_alone() -> Iterator[None]:
    with exact_by_torch():
        yield


@pytest.mark.usefixtures("torch_alone")
@pytest.mark.parametrize(
    ("name", "dtype"), dealt_diagonally(("llama", "gemma2", "mixtral"), DTYPES, one_in=2)
)
def test_ordered_attention_gives_rows_the_same_bits_beside_other_sessions(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    block = LayerBlock.load(Checkpoint(make_tiny(tmp_path, name)), 1, LAYERS, dtype=dtype, exact=True)
    assert block.exact and block.kernels is None
    check(block, torch.equal)


@pytest.mark.usefixtures("torch_alone")
@pytest.mark.parametrize("kind", ["int4-bf16", "int8-fp32", "fp32-kv8"])
def test_ordered_attention_in_other_formats(kind: str, make_checkpoint: Make) -> None:
    checkpoint = Checkpoint(make_checkpoint(head_dim=32, vocab_size=VOCAB))
    block = LayerBlock.load(checkpoint, 0, 2, exact=True, **FORMATS[kind])
    assert block.exact and block.kernels is None
    check(block, torch.equal)


@pytest.mark.one_in(12)
@pytest.mark.usefixtures("torch_alone")
@pytest.mark.parametrize(("name", "dtype"), dealt_diagonally(tuple(TINY), DTYPES, one_in=2))
def test_masked_attention_is_equal_within_rounding(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    block = LayerBlock.load(Checkpoint(make_tiny(tmp_path, name)), 0, LAYERS, dtype=dtype)
    assert not block.exact
    check(block, within_rounding)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(make_tiny(tmp_path_factory.mktemp("llama"), "llama"))


@pytest.fixture(params=["kernels", "ordered", "masked"])
def block(request: pytest.FixtureRequest, llama: Checkpoint) -> Iterator[LayerBlock]:
    """A block of a small Llama, computed in each way."""
    if request.param == "kernels" and not RUNNING:
        pytest.skip("there are no kernels for this CPU")
    with ExitStack() as stack:
        if request.param != "kernels":
            stack.enter_context(exact_by_torch())
        yield LayerBlock.load(llama, 0, LAYERS, exact=request.param != "masked")


def test_no_rows_are_no_forward(block: LayerBlock) -> None:
    assert block.forward_together([], never) == []


def test_one_session_is_an_ordinary_forward(block: LayerBlock) -> None:
    alone, together = Sessions(block, [70]), Sessions(block, [70])
    (wanted,) = alone.alone(alone.prompts())
    (found,) = together.together(together.prompts())
    assert torch.equal(found, wanted)


def test_two_parts_of_a_session_follow_each_other(block: LayerBlock) -> None:
    alone, together = Sessions(block), Sessions(block)
    alone.alone(alone.prompts())
    together.together(together.prompts())
    tail = together.draft(0, TREE)
    parts = [tail.cut(0, 3), together.draft(1, CHAIN), tail.cut(3, len(TREE))]
    wanted = alone.alone([alone.draft(0, TREE), alone.draft(1, CHAIN)])
    first, other, second = together.together(parts)
    assert within_rounding(torch.cat((first, second)), wanted[0])
    assert within_rounding(other, wanted[1])


REFUSED: list[tuple[dict[str, Any], type[FlowEdgeError]]] = [  # changes of a part, and the error of each
    ({"inputs": torch.tensor([VOCAB])}, ProtocolError),
    ({"inputs": torch.zeros((1, 4))}, ProtocolError),
    ({"positions": np.array([69])}, ProtocolError),
    ({"positions": np.array([70, 71])}, ProtocolError),
    ({"context": 71}, ProtocolError),
    ({"tail_parents": np.array([70])}, ProtocolError),
    ({"tail_parents": np.array([-1, -1])}, ProtocolError),
    ({"cached": CAPACITY, "context": CAPACITY, "positions": np.array([CAPACITY])}, CapacityError),
]


def test_a_part_that_is_refused_leaves_all_caches_as_they_are(block: LayerBlock) -> None:
    sessions = Sessions(block)
    sessions.together(sessions.prompts())
    before = [cache.kv.clone() for cache in sessions.caches]
    good = [sessions.draft(0, TREE), sessions.draft(2, CHAIN)]
    for changes, error in REFUSED:
        bad = replace(sessions.draft(1, [-1]), **changes)
        with pytest.raises(error) as together:
            block.forward_together([good[0], bad, good[1]], never)
        with pytest.raises(error) as alone:
            block.forward_together([bad], never)
        assert str(together.value) == str(alone.value)
        for cache, kv in zip(sessions.caches, before, strict=True):
            assert torch.equal(cache.kv, kv), changes
    other = Sessions(block)
    other.alone(other.prompts())
    wanted = other.alone([other.draft(0, TREE), other.draft(2, CHAIN)])
    for own, alone_rows in zip(sessions.together(good), wanted, strict=True):
        assert within_rounding(own, alone_rows)


def test_an_abort_leaves_the_cached_rows_alone(block: LayerBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_block, "_CALL_BYTES", 0)  # a call for each layer
    sessions = Sessions(block)
    sessions.together(sessions.prompts())
    before = [
        cache.kv[:, :, :, :cached].clone() for cache, cached in zip(sessions.caches, CONTEXTS, strict=True)
    ]
    asked: list[int] = []

    def after_two_layers() -> bool:
        asked.append(1)
        return len(asked) > 2

    assert block.forward_together(sessions.drafts(), after_two_layers) is None
    assert len(asked) == 3
    for cache, cached, kv in zip(sessions.caches, CONTEXTS, before, strict=True):
        assert torch.equal(cache.kv[:, :, :, :cached], kv)
        assert cache.kv[1, 0, :, cached].any() and not cache.kv[2, 0, :, cached].any()
    sessions.together(sessions.drafts())


def test_batches_fill_products_in_order(block: LayerBlock) -> None:
    sessions = Sessions(block, [5, 70, 131, 60])
    counts = RowCounts(tuple(range(1, 129)))
    cut = [
        [(piece.part, piece.rows.cached, piece.rows.count) for piece in batch]
        for batch in batches(sessions.prompts(), counts)
    ]
    assert cut == [[(0, 0, 5), (1, 0, 70), (2, 0, 53)], [(2, 53, 78), (3, 0, 50)], [(3, 50, 10)]]
    (batch,) = batches(sessions.prompts(), ANY_COUNT)
    assert [piece.rows.count for piece in batch] == [5, 70, 131, 60]
