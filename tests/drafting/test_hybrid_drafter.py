"""Two drafters as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.drafting.drafter import DraftLayer, padded_layer
from flowedge.drafting.hybrid import HybridDrafter, merged
from flowedge.drafting.lm import LMDrafter
from flowedge.drafting.ngram import NGramDrafter
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint import Checkpoint
from flowedge.models.head import LMHead
from tests.drafting.trees import check_shape, children, grow_and_check

VOCAB = 60
CHILDREN = st.dictionaries(st.integers(0, 5), st.floats(-9, 0), max_size=5)


def layer(rows: list[dict[int, float]]) -> DraftLayer:
    return padded_layer([sorted(row.items(), key=lambda pair: -pair[1]) for row in rows])


@given(st.lists(st.tuples(CHILDREN, CHILDREN), min_size=1, max_size=4), st.integers(1, 8))
def test_the_union_with_the_higher_score_of_each(
    rows: list[tuple[dict[int, float], dict[int, float]]], width: int
) -> None:
    found = merged(layer([first for first, _ in rows]), layer([second for _, second in rows]), width)
    check_shape(found, len(rows), width)
    for i, (first, second) in enumerate(rows):
        tokens, log_probs = children(found, i)
        union = {t: max(each[t] for each in (first, second) if t in each) for t in {*first, *second}}
        assert len(tokens) == min(width, len(union))
        assert [union[token] for token in tokens.tolist()] == log_probs.tolist()
        assert sorted(union.values(), reverse=True)[:width] == log_probs.tolist()


@pytest.fixture(scope="module")
def models(small_lm: Callable[..., Path]) -> Callable[[], LMDrafter]:
    checkpoint = Checkpoint(small_lm(vocab_size=VOCAB))
    block, head = LayerBlock.load(checkpoint, 0, 2), LMHead.load(checkpoint)
    return lambda: LMDrafter(block, head, VOCAB, "small")


def test_each_expands_what_the_other_proposed(models: Callable[[], LMDrafter]) -> None:
    """Below every node of a hybrid's tree is what both say there, asked on their own."""
    rng = np.random.default_rng(2)
    text = rng.integers(0, 5, 30).tolist()
    hybrid = HybridDrafter(models(), NGramDrafter())
    hybrid.open("s", 40, text[0])
    hybrid.extend("s", None, np.array(text[1:]))
    assert not hybrid.needs_features
    met: set[str] = set()

    def check(path: list[int], tokens: np.ndarray, log_probs: np.ndarray) -> None:
        parts = []
        for alone in (models(), NGramDrafter()):
            alone.open("s", 40, text[0])
            alone.extend("s", None, np.array([*text[1:]]))
            found = alone.grow("s", 1, [0], [-1], [text[-1]], 4)
            for name, token in enumerate(path, start=1):
                found = alone.grow("s", 1, [name], [name - 1], [token], 4)
            parts.append(dict(zip(*(values.tolist() for values in children(found, 0)), strict=True)))
        union = {t: max(part[t] for part in parts if t in part) for t in {*parts[0], *parts[1]}}
        np.testing.assert_allclose(log_probs, sorted(union.values(), reverse=True)[:4], atol=1e-4)
        np.testing.assert_allclose(log_probs, [union[t] for t in tokens.tolist()], atol=1e-4)
        met.update("both" if t in parts[0] and t in parts[1] else "one" for t in tokens.tolist())

    for growth in range(1, 4):
        grow_and_check(hybrid, growth, 4, check, vocab=VOCAB)
    assert "one" in met


def test_sessions_go_back_in_both(models: Callable[[], LMDrafter]) -> None:
    hybrid = HybridDrafter(models(), NGramDrafter())
    hybrid.open("s", 40, 1)
    hybrid.extend("s", None, np.array([2, 3, 1, 2]))
    before = hybrid.grow("s", 1, [0], [-1], [2], 4)
    hybrid.extend("s", None, np.array([4, 1, 2]))
    hybrid.rewind("s", 3)
    hybrid.extend("s", None, np.array([2]))
    after = hybrid.grow("s", 2, [0], [-1], [2], 4)
    assert before.tokens.tolist() == after.tokens.tolist()
    np.testing.assert_allclose(before.log_probs, after.log_probs, atol=1e-5)
    parts = (models(), NGramDrafter())
    assert hybrid.session_bytes(10) == sum(part.session_bytes(10) for part in parts)
    assert hybrid.weight_bytes == sum(part.weight_bytes for part in parts)
    assert hybrid.fingerprint == "small+ngram-1-4"
    hybrid.close("s")
