"""Blocks against transformers' own whole model."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from flowedge.core.errors import BadRequestError, CapacityError, ProtocolError
from flowedge.models import block as block_module
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.kernels import block as native_block
from tests.models.conftest import VOCAB, Make
from tests.models.pipeline import History, Pipeline, never
from tests.support.breadth import dealt, dealt_diagonally

ATOL = 2e-5
TEXT = np.random.default_rng(5).integers(0, VOCAB, 70).tolist()

# A tree after a context: slot offset of each node's parent, -1 for the context; in the order it is sent.
TREE = [-1, 0, 0, 1, 2, 1, 4, 3, 3, 6, 0]
TREE_TOKENS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46]


@functools.lru_cache(maxsize=1)
def whole_model(directory: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")


def whole_model_logits(directory: Path, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = whole_model(directory)(torch.tensor([tokens])).logits[0]
    return logits


def path_of(node: int) -> list[int]:
    return [] if node == -1 else [*path_of(TREE[node]), node]


CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied-sharded": {"tie_word_embeddings": True, "max_shard_size": "60KB"},
    "bias-mha-sharded": {
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": 4,
        "max_shard_size": "60KB",
    },
    "mqa-head-dim": {"num_key_value_heads": 1, "head_dim": 24},
}


@pytest.mark.parametrize(("config", "blocks"), dealt_diagonally(tuple(CONFIGS), (1, 2, 4), one_in=3))
def test_blocks_equal_the_whole_model(make_checkpoint: Make, config: str, blocks: int) -> None:
    directory = make_checkpoint(**CONFIGS[config])
    expected = whole_model_logits(directory, TEXT)
    pipeline = Pipeline(Checkpoint.open(str(directory)), blocks)
    sizes = [33, 1, 1, 16, 19]  # chunks, and rows alone
    cuts = np.cumsum([0, *sizes])
    got = torch.cat([pipeline.commit(TEXT[a:b]) for a, b in itertools.pairwise(cuts)])
    assert len(got) == len(TEXT)
    torch.testing.assert_close(got, expected, atol=ATOL, rtol=1e-4)


def test_two_weight_files_are_really_written(make_checkpoint: Make) -> None:
    assert len(list(make_checkpoint(max_shard_size="60KB").glob("*.safetensors"))) > 1


@pytest.mark.parametrize("segments", [[11], [4, 4, 3], [1] * 11])
def test_tree_rows_equal_their_paths_as_plain_text(directory: Path, segments: list[int]) -> None:
    pipeline = Pipeline(Checkpoint.open(str(directory)), 2)
    prompt = TEXT[:20]
    pipeline.commit(prompt)
    slots = [parent if parent == -1 else 20 + parent for parent in TREE]
    rows = []
    for stop in np.cumsum(segments):
        start = pipeline.cached - 20
        rows.append(pipeline.draft(TREE_TOKENS[start:stop], slots[start:stop]))
    got = torch.cat(rows)
    for node in range(len(TREE)):
        path = [TREE_TOKENS[i] for i in path_of(node)]
        expected = whole_model_logits(directory, [*prompt, *path])[-1]
        torch.testing.assert_close(got[node], expected, atol=ATOL, rtol=1e-4)


@pytest.mark.parametrize("seed", dealt(range(6), {0, 1}.__contains__))
def test_random_histories_of_trees_and_prunes(directory: Path, seed: int) -> None:
    """Every row of every round equals the row of its path alone, after any drafts, acceptances and prunes."""
    history = History(Pipeline(Checkpoint.open(str(directory)), 2), seed, prompt=12, reach=256)
    for _ in range(8):
        texts, logits = history.draft(most=6)
        for row, text in zip(logits, texts, strict=True):
            expected = whole_model_logits(directory, text)[-1]
            torch.testing.assert_close(row, expected, atol=ATOL, rtol=1e-4)
        if history.rng.random() < 0.5:
            history.prune()


def test_an_abort_between_layers_leaves_the_cached_rows_alone(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint.open(str(directory))
    block = LayerBlock.load(checkpoint, 0, 4)
    cache = block.new_cache(64)
    chain = np.array([-1, *range(9)], dtype=np.int64)
    positions = np.arange(10, dtype=np.int64)
    tokens = torch.tensor(TEXT[:10])
    assert block.forward(tokens, positions, cache, 0, 0, chain, never) is not None
    before = cache.kv[:, :, :, :10].clone()
    asked: list[int] = []

    monkeypatch.setattr(native_block, "_CALL_BYTES", 0)  # a call for each layer

    def after_two_layers() -> bool:
        asked.append(1)
        return len(asked) > 2

    root = np.array([-1], dtype=np.int64)
    ten = np.array([10], dtype=np.int64)
    assert block.forward(tokens[:1], ten, cache, 10, 10, root, after_two_layers) is None
    assert len(asked) == 3
    assert torch.equal(cache.kv[:, :, :, :10], before)
    assert cache.kv[1, 0, :, 10].any() and not cache.kv[2, 0, :, 10].any()
    again = block.forward(tokens[:1], ten, cache, 10, 10, root, never)
    expected = whole_model_logits(directory, [*TEXT[:10], TEXT[0]])[-1:]
    head = Pipeline(checkpoint, 1).head
    assert again is not None
    torch.testing.assert_close(head.logits(again), expected, atol=ATOL, rtol=1e-4)


def test_bytes_are_those_announced(directory: Path) -> None:
    checkpoint = Checkpoint.open(str(directory))
    for start, stop in [(0, 2), (1, 3), (3, 4), (0, 4)]:
        for dtype in (torch.float32, torch.bfloat16):
            block = LayerBlock.load(checkpoint, start, stop, dtype=dtype)
            assert block.weight_bytes == LayerBlock.required_bytes(checkpoint, start, stop, dtype=dtype)
    first, last = LayerBlock.load(checkpoint, 0, 1), LayerBlock.load(checkpoint, 3, 4)
    assert (first.is_first, first.is_last, last.is_first, last.is_last) == (True, False, False, True)
    assert (first.hidden_size, first.vocab_size, first.num_layers) == (64, VOCAB, 1)


def test_a_range_that_does_not_exist_is_refused(directory: Path) -> None:
    checkpoint = Checkpoint.open(str(directory))
    for start, stop in [(-1, 2), (2, 2), (3, 5)]:
        with pytest.raises(BadRequestError, match=r"not within \[0, 4\)"):
            LayerBlock.load(checkpoint, start, stop)


def int64(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"inputs": torch.tensor([VOCAB])}, ProtocolError, "token id"),
    ({"inputs": torch.tensor([-1])}, ProtocolError, "token id"),
    ({"inputs": torch.zeros(1, 64)}, ProtocolError, "expected int64 token ids"),
    ({"inputs": torch.tensor([1], dtype=torch.int32)}, ProtocolError, "expected int64 token ids"),
    ({"inputs": torch.tensor([], dtype=torch.int64)}, ProtocolError, "without rows"),
    ({"positions": int64(2, 3)}, ProtocolError, "1 int64 positions"),
    ({"positions": np.array([2.0])}, ProtocolError, "1 int64 positions"),
    ({"positions": int64(3)}, ProtocolError, "a position"),
    ({"positions": int64(0)}, ProtocolError, "a position"),
    ({"context": 3}, ProtocolError, "context 3"),
    ({"context": -1}, ProtocolError, "context -1"),
    ({"tail_parents": int64(-1, -1)}, ProtocolError, "1 int64 tail parents"),
    ({"tail_parents": int64(2)}, ProtocolError, "earlier slot"),
    ({"tail_parents": int64(1)}, ProtocolError, "earlier slot"),
    ({"tail_parents": int64(-2)}, ProtocolError, "earlier slot"),
    ({"cached": 8, "context": 8, "positions": int64(8)}, CapacityError, "cache of 8 rows"),
]


def test_inputs_that_contradict_the_session_are_refused(directory: Path) -> None:
    block = LayerBlock.load(Checkpoint.open(str(directory)), 0, 1)
    arguments: dict[str, Any] = {
        "inputs": torch.tensor([1]),
        "positions": int64(2),
        "cache": block.new_cache(8),
        "cached": 2,
        "context": 2,
        "tail_parents": int64(-1),
        "should_abort": never,
    }
    for changes, error, message in REFUSED:
        with pytest.raises(error, match=message):
            block.forward(**(arguments | changes))
        block.forward(**arguments)


MALFORMED = [(-1, 99), (-1, 4), (-1, 3), (-1, 1), (-1, -2), (1, 2), (2, 2), (-1, 2**62), (-1, -(2**63))]


@pytest.mark.parametrize("exact", [False, True])
def test_malformed_parents_are_refused(directory: Path, exact: bool) -> None:
    block = LayerBlock.load(Checkpoint.open(str(directory)), 0, 1, exact=exact)
    assert block.exact == exact
    cache = block.new_cache(8)
    for parents in MALFORMED:
        with pytest.raises(ProtocolError, match=r"neither -1 nor an earlier slot from 2 up"):
            block.forward(torch.tensor([1, 2]), int64(2, 3), cache, 2, 2, int64(*parents), never)
    assert block.forward(torch.tensor([1, 2]), int64(2, 3), cache, 2, 2, int64(-1, 2), never) is not None


def test_hidden_rows_of_another_shape_or_dtype_are_refused(directory: Path) -> None:
    block = LayerBlock.load(Checkpoint.open(str(directory)), 1, 2)
    for hidden in (torch.zeros(1, 63), torch.zeros(64), torch.zeros(1, 64, dtype=torch.float16)):
        with pytest.raises(ProtocolError, match="expected hidden rows"):
            block.forward(hidden, int64(0), block.new_cache(8), 0, 0, int64(-1), never)


def test_on_a_cpu_without_kernels_no_block_is_exact(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_module, "missing_reason", lambda: "install g++ 11 or newer")
    block = LayerBlock.load(Checkpoint(directory), 0, 2, exact=True)
    assert not block.exact
    assert block.inexact_reason == "a CPU computes exact rows by FlowEdge's kernels; install g++ 11 or newer"
    with pytest.raises(BadRequestError, match=r"needs exact attention.*install g\+\+ 11"):
        LayerBlock.load(Checkpoint(directory), 0, 2, exact=True, kv="int8")


def test_weights_without_kernels_are_not_exact_on_a_cpu(directory: Path) -> None:
    block = LayerBlock.load(Checkpoint(directory), 0, 2, exact=True, quant="nf4")
    assert not block.exact
    assert "no kernels for a Linear4bit" in block.inexact_reason
