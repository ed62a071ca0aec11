"""Exact blocks: a row of any history has the bits of its path decoded one token at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowedge.core.errors import BadRequestError
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.exact import exactness
from flowedge.models.lm_head import LMHead
from tests.models.conftest import Make, threads_of_torch
from tests.models.pipeline import History, Pipeline
from tests.models.tiny_families import TINY, make_tiny
from tests.support.breadth import dealt
from tests.support.kernels import exact_by_torch

CAPACITY = 400
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"dtype": torch.float32},
    "bf16": {"dtype": torch.bfloat16},
    "fp16": {"dtype": torch.float16},
    "int8": {"dtype": torch.bfloat16, "quant": "int8"},
    "int4": {"dtype": torch.bfloat16, "quant": "int4"},
    "nf4": {"dtype": torch.bfloat16, "quant": "nf4"},
    "nf4-fp32": {"dtype": torch.float32, "quant": "nf4"},
    "bf16-kv8": {"dtype": torch.bfloat16, "kv": "int8"},
    "fp32-kv8": {"dtype": torch.float32, "kv": "int8"},
}


@pytest.fixture(autouse=True)
def computed_by_torch() -> Iterator[None]:
    """The kernels' rows are tested in tests/models/kernels."""
    with exact_by_torch():
        yield


class Plain:
    """Decodes texts one token at a time; the cached beginning of the text before is used again."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._text: list[int] = []

    def logits(self, text: Sequence[int]) -> torch.Tensor:
        """The logits after the last token of a text."""
        pairs = zip(self._text, text[:-1], strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        if common < len(self._text) and self._pipeline.caches[0].states is not None:
            self._pipeline.restart()  # a state cannot be taken back
            common = 0
        self._pipeline.context = common
        self._text = list(text)
        return [self._pipeline.commit([token]) for token in text[self._pipeline.context :]][-1][0]


def exact_pipeline(checkpoint: Checkpoint, blocks: int, **load: Any) -> Pipeline:
    pipeline = Pipeline(checkpoint, blocks, capacity=CAPACITY, exact=True, **load)
    pipeline.head = LMHead.load(checkpoint, load["dtype"], exact=True)
    for block in pipeline.blocks:
        assert block.exact, block.inexact_reason
    return pipeline


def check(checkpoint: Checkpoint, seed: int, prompt: int = 150, rounds: int = 4, **load: Any) -> None:
    history = History(exact_pipeline(checkpoint, 2, **load), seed, prompt)
    plain = Plain(exact_pipeline(checkpoint, 1, **load))
    assert torch.equal(history.prompt_logits[-1], plain.logits(history.context))
    for _ in range(rounds):
        texts, logits = history.draft(most=24)
        for row in range(0, len(texts), 4):
            assert torch.equal(logits[row], plain.logits(texts[row])), f"row {row} of {len(texts)}"
        if history.rng.random() < 0.7:
            history.prune()


@pytest.mark.one_in(27)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_histories_in_every_precision(make_checkpoint: Make, precision: str) -> None:
    checkpoint = Checkpoint(make_checkpoint(head_dim=32, seed=1, num_hidden_layers=2))
    check(checkpoint, 0, prompt=140, rounds=2, **PRECISIONS[precision])


@pytest.mark.parametrize("precision", dealt(PRECISIONS, {"bf16"}.__contains__))
def test_histories_with_a_key_head_for_each_head(make_checkpoint: Make, precision: str) -> None:
    checkpoint = Checkpoint(make_checkpoint(num_key_value_heads=4, head_dim=32))
    for seed in range(2):
        check(checkpoint, seed, **PRECISIONS[precision])


@pytest.mark.proof
@pytest.mark.parametrize("precision", PRECISIONS)
def test_histories_of_the_bundled_model(precision: str) -> None:
    check(Checkpoint.open("bundled"), 5, prompt=200, **PRECISIONS[precision])


# Windows, a soft cap, two kinds of angles, experts, angles that depend on the length, states, shared keys,
# and latent attention.
DISTINCT = (
    "mistral",
    "gemma2",
    "gemma3",
    "mixtral",
    "phi3-longrope",
    "qwen3_5",
    "gemma4-small",
    "glm4_moe_lite",
)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "precision"),
    dealt(
        [*((name, "bf16") for name in DISTINCT), *((name, "fp32") for name in TINY)],
        {("gemma3", "bf16"), ("qwen3_5", "bf16")}.__contains__,
    ),
)
def test_histories_of_every_family(name: str, precision: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(make_tiny(tmp_path, name))
    prompt = 20 if name == "phi3-longrope" else 140
    check(checkpoint, 1, prompt=prompt, rounds=2, **PRECISIONS[precision])


def test_several_threads(make_checkpoint: Make) -> None:
    checkpoint = Checkpoint(make_checkpoint(intermediate_size=4100, num_hidden_layers=2))
    with threads_of_torch(3):
        check(checkpoint, 2, rounds=2, dtype=torch.float32)


def test_a_chain_deeper_than_two_blocks(directory: Path) -> None:
    """Draft rows are then in heads, in place along the first chain and elsewhere on its branches."""
    checkpoint = Checkpoint(directory)
    pipeline = exact_pipeline(checkpoint, 1, dtype=torch.bfloat16)
    plain = Plain(exact_pipeline(checkpoint, 1, dtype=torch.bfloat16))
    tokens = np.random.default_rng(4).integers(0, 97, 200).tolist()
    pipeline.commit(tokens[:10])
    # Two chains of equal tokens in alternate slots: the slot of a node is 10 + 2 * depth, or one more.
    parents = [-1, -1, *range(10, 10 + 2 * 148)]
    logits = torch.cat(
        [
            pipeline.draft(
                [token for token in tokens[10 + start : 10 + stop] for _ in range(2)],
                parents[2 * start : 2 * stop],
            )
            for start, stop in [(0, 20), (20, 84), (84, 148)]
        ]
    )
    assert torch.equal(logits[::2], logits[1::2])
    for depth in (0, 63, 117, 118, 119, 147):
        assert torch.equal(logits[2 * depth], plain.logits(tokens[: 11 + depth]))


def test_more_rows_than_a_product_has_are_computed_in_parts(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    tokens = np.random.default_rng(5).integers(0, 97, 300).tolist()
    whole = exact_pipeline(checkpoint, 2, dtype=torch.float32).commit(tokens)
    pipeline = exact_pipeline(checkpoint, 1, dtype=torch.float32)
    parts = torch.cat([pipeline.commit(tokens[:129]), pipeline.commit(tokens[129:])])
    assert torch.equal(whole, parts)


def test_exact_rows_are_near_the_rows_of_masked_attention(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    tokens = np.random.default_rng(5).integers(0, 97, 200).tolist()
    masked = Pipeline(checkpoint, 2, capacity=CAPACITY).commit(tokens)
    exact = exact_pipeline(checkpoint, 2, dtype=torch.float32).commit(tokens)
    torch.testing.assert_close(exact, masked, atol=2e-5, rtol=1e-4)


def test_masked_blocks_have_other_bits_in_a_tree(directory: Path) -> None:
    """So that the tests above would notice a block that is not exact."""
    checkpoint = Checkpoint(directory)
    tokens = np.random.default_rng(5).integers(0, 97, 200).tolist()
    pipeline, plain = Pipeline(checkpoint, 1, CAPACITY), Plain(Pipeline(checkpoint, 1, CAPACITY))
    pipeline.commit(tokens[:100])
    logits = pipeline.draft(tokens[100:116], [-1, *range(100, 115)])
    equal = [torch.equal(logits[row], plain.logits(tokens[: 101 + row])) for row in range(16)]
    assert not all(equal)


def test_a_block_says_why_it_is_not_exact(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "attention_sizes", lambda *_: None)
    checkpoint = Checkpoint(directory)
    block = LayerBlock.load(checkpoint, 0, 2, exact=True)
    assert not block.exact
    assert "depends on the rows" in block.inexact_reason
    assert not LayerBlock.load(checkpoint, 0, 2).inexact_reason
    with pytest.raises(BadRequestError, match="int8 needs exact attention"):
        LayerBlock.load(checkpoint, 0, 2, exact=True, kv="int8", dtype=torch.float32)


def test_a_layer_whose_rows_depend_on_their_number_keeps_masked_attention(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactness, "_rows_are_equal", lambda *_: False)
    checkpoint = Checkpoint(directory)
    block = LayerBlock.load(checkpoint, 0, 4, exact=True)
    assert not block.exact
    assert "number or place" in block.inexact_reason
    plain, reported = Pipeline(checkpoint, 1), Pipeline(checkpoint, 1)
    reported.blocks, reported.caches = [block], [block.new_cache(64)]
    torch.testing.assert_close(reported.commit([1, 2, 3]), plain.commit([1, 2, 3]))
