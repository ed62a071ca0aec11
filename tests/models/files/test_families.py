"""Every supported architecture in blocks, against transformers' own whole model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.core.sampling import SamplingParams
from flowedge.models.attention.kv_store import kv_row_bytes
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead, embedding_multiplier
from flowedge.models.sampling.token_sampler import TokenSampler
from tests.models.pipeline import Pipeline, never
from tests.models.tiny_families import LAYERS, TINY, VOCAB, make_multimodal, make_tiny
from tests.support.breadth import dealt_diagonally

ATOL = 2e-4  # CPUs differ by rounding, which the states of recurrent layers carry on
TEXT = np.random.default_rng(5).integers(3, VOCAB, 44).tolist()
PROMPT = 21  # tokens of TEXT, more than two windows
NEW_TOKENS = 12  # more than a window
# A tree after a context: offset of each node's parent, -1 for the context. Its longest path, longer than a
# window, goes through the last of four siblings, so that slots and positions differ. Its last node is near.
TREE = [-1, 0, 0, 0, 0, 4, 2, 5, 6, 7, 9, 10, 11, 12, 13, 0]
CUTS = [0, 1, 7, 14, 15, 16]  # of the segments it is sent in
TREE_TOKENS = np.random.default_rng(6).integers(3, VOCAB, len(TREE)).tolist()


Family = Callable[[str], tuple[Checkpoint, ReferenceModel]]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """family(name) -> a checkpoint and transformers' whole model of it."""

    @cache
    def make(name: str) -> tuple[Checkpoint, ReferenceModel]:
        directory = make_tiny(tmp_path_factory.mktemp(name), name)
        return Checkpoint.open(str(directory)), ReferenceModel.load(str(directory))

    return make


def plain(reference: ReferenceModel, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = reference.model(torch.tensor([tokens])).logits[0]
    return logits


def path_of(node: int) -> list[int]:
    return [] if node == -1 else [*path_of(TREE[node]), node]


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=ATOL, rtol=1e-4)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "stages"), dealt_diagonally(tuple(TINY), (1, 2, 4), one_in=3))
def test_chunks_trees_and_prunes_equal_the_whole_model(family: Family, name: str, stages: int) -> None:
    checkpoint, reference = family(name)
    pipeline = Pipeline(checkpoint, stages, capacity=96)
    cuts = np.cumsum([0, 13, 1, PROMPT - 14])
    got = torch.cat([pipeline.commit(TEXT[a:b]) for a, b in itertools.pairwise(cuts)])
    assert_close(got, plain(reference, TEXT[:PROMPT]))

    slots = [parent if parent == -1 else PROMPT + parent for parent in TREE]
    rows = torch.cat([pipeline.draft(TREE_TOKENS[a:b], slots[a:b]) for a, b in itertools.pairwise(CUTS)])
    for node in range(len(TREE)):
        text = [*TEXT[:PROMPT], *(TREE_TOKENS[i] for i in path_of(node))]
        assert_close(rows[node], plain(reference, text)[-1])

    # Nodes 0 and 4 are accepted, 5 is the new root; its subtree stays, and grows by a leaf and a branch.
    kept = [5, 7, 9, 10, 11, 12, 13, 14]
    pipeline.prune([PROMPT, PROMPT + 4], [PROMPT + node for node in kept])
    leaf = pipeline.draft([50, 51], [pipeline.cached - 1, pipeline.context + 1])
    for row, (node, token) in enumerate([(14, 50), (7, 51)]):
        text = [*TEXT[:PROMPT], *(TREE_TOKENS[i] for i in path_of(node)), token]
        assert_close(leaf[row], plain(reference, text)[-1])

    # The round ends, and the next begins on the context alone.
    accepted = [*TEXT[:PROMPT], *(TREE_TOKENS[i] for i in (0, 4, 5))]
    pipeline.prune([pipeline.context], [])
    assert_close(
        pipeline.commit(TEXT[PROMPT:]), plain(reference, [*accepted, *TEXT[PROMPT:]])[len(accepted) :]
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "temperature"), dealt_diagonally(tuple(TINY), (0.0, 1.0), one_in=2))
def test_tokens_equal_generate(family: Family, name: str, temperature: float) -> None:
    checkpoint, reference = family(name)
    sampling = SamplingParams(temperature=temperature, seed=4)
    pipeline = Pipeline(checkpoint, 2)
    sampler = TokenSampler(sampling, VOCAB)
    tokens: list[int] = []
    logits = pipeline.commit(TEXT[:PROMPT])[-1]
    for _ in range(NEW_TOKENS):
        tokens.append(sampler.draw(logits, PROMPT + len(tokens)))
        logits = pipeline.commit(tokens[-1:])[-1]
    assert reference.generate(TEXT[:PROMPT], sampling, NEW_TOKENS).token_ids == tokens
    assert len(set(tokens)) > 1
    assert reference.judge(TEXT[:PROMPT], tokens, sampling, 1e-4).passed


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TINY)
def test_bytes_are_those_announced(family: Family, name: str) -> None:
    checkpoint, _ = family(name)
    for start, stop, quant in [
        (0, 2, "none"),
        (1, 3, "none"),
        (3, 4, "none"),
        (0, LAYERS, "none"),
        (1, 3, "nf4"),
    ]:
        block = LayerBlock.load(checkpoint, start, stop, quant=quant)
        assert block.weight_bytes == LayerBlock.required_bytes(checkpoint, start, stop, quant=quant)
        cache = block.new_cache(10)
        assert cache.store.nbytes == 10 * kv_row_bytes(block.cached_heads, torch.float32)
        assert cache.nbytes == cache.store.nbytes + block.session_bytes
    whole = LayerBlock.required_bytes(checkpoint, 0, LAYERS)
    untied = 0 if checkpoint.config.tie_word_embeddings else LMHead.load(checkpoint).weight_bytes
    assert whole + untied == checkpoint.tensor_bytes(checkpoint.names)


@pytest.mark.parametrize("as_published", [True, False])
@pytest.mark.parametrize("name", ["gemma3", "mistral3", "qwen3_5"])
def test_the_text_model_of_a_multimodal_checkpoint(tmp_path: Path, name: str, as_published: bool) -> None:
    whole = make_multimodal(tmp_path, name, save_original_format=as_published)
    checkpoint = Checkpoint.open(str(tmp_path))
    with torch.inference_mode():
        expected = whole(torch.tensor([TEXT])).logits[0]
    assert_close(Pipeline(checkpoint, 2).commit(TEXT), expected)
    assert_close(plain(ReferenceModel.load(checkpoint), TEXT), expected)


@pytest.mark.parametrize(("name", "atol"), [("llama", 0.1), ("gemma3", 0.15)])
def test_half_precision_follows_the_model_in_half_precision(name: str, atol: float, tmp_path: Path) -> None:
    """Gemma rounds its embedding's multiplier to the dtype; another one would be off by more."""
    checkpoint = Checkpoint.open(str(make_tiny(tmp_path, name)))
    model = ReferenceModel.load(checkpoint, dtype=torch.bfloat16).model
    block = LayerBlock.load(checkpoint, 0, LAYERS, dtype=torch.bfloat16)
    chain, positions = np.arange(-1, 39, dtype=np.int64), np.arange(40, dtype=np.int64)
    got = block.forward(torch.tensor(TEXT[:40]), positions, block.new_cache(40), 0, 0, chain, never)
    with torch.inference_mode():
        expected = model.model(torch.tensor([TEXT[:40]])).last_hidden_state[0]
    assert got is not None and got.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, atol=atol, rtol=0.1)
    multiplier = embedding_multiplier(checkpoint.architecture, torch.bfloat16)
    assert multiplier == (5.65625 if name == "gemma3" else 1)
