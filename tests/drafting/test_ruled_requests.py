"""Requests whose nodes are deferred, and requests that rule tokens out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flowedge.core.arrays import NO_TOKEN
from flowedge.drafting.drafter import ROOT, Frontier, GrowRequest
from flowedge.drafting.ranking import RULED_OUT
from flowedge.native.library import missing_reason
from tests.drafting.made_drafters import EXACT, NAMES, VOCAB, Make, makers
from tests.drafting.test_drafting_together import ROWS, SAMPLINGS, Text, compare

CHAIN = Frontier([1, 2, 3, 4, 5], [ROOT, 1, 2, ROOT, 3], [7, 8, 9, 5, 11])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Make]:
    torch.set_num_threads(1)
    return makers(tmp_path_factory.mktemp("drafters"))


def opened(made: dict[str, Make], name: str, sampling: int = 0):
    drafter, text = made[name](), Text.random(3)
    drafter.open(text.name, ROWS, int(text.tokens[0]), SAMPLINGS[sampling])
    return drafter, text, (text.features[:40], text.tokens[1:41])


def test_levels_have_no_node_with_its_parent() -> None:
    assert [list(level.nodes) for level in CHAIN.levels] == [[1, 4], [2], [3], [5]]
    assert [list(level.tokens) for level in CHAIN.levels] == [[7, 5], [8], [9], [11]]
    plain = Frontier([6, 7], [4, 2], [1, 1])
    assert plain.levels == [plain]


@pytest.mark.parametrize("name", NAMES)
def test_nodes_below_each_other_in_one_request_are_those_one_after_the_other(
    made: dict[str, Make], name: str
) -> None:
    """With the true rows, and beside another session."""
    exact = name in EXACT and "recall" not in name and not missing_reason()
    one, text, rows = opened(made, name)
    other, _, _ = opened(made, name)
    one.grow_together([GrowRequest(text.name, 1, Frontier([ROOT], [-1], [0]), 4, *rows)])
    expected = {
        node: one.grow(text.name, 1, Frontier([node], [parent], [token]), 4)
        for node, parent, token in zip(CHAIN.nodes, CHAIN.parents, CHAIN.tokens, strict=True)
    }
    beside = Text.random(5)
    other.open(beside.name, ROWS, int(beside.tokens[0]))
    found, _ = other.grow_together(
        [
            GrowRequest(text.name, 1, CHAIN, 4, *rows),
            GrowRequest(
                beside.name,
                1,
                Frontier([ROOT], [-1], [0]),
                4,
                beside.features[:9],
                beside.tokens[1:10],
            ),
        ]
    )
    for row, node in enumerate(CHAIN.nodes):
        own = replace(found, tokens=found.tokens[row : row + 1], log_probs=found.log_probs[row : row + 1])
        width = expected[node].tokens.shape[1]
        assert (own.tokens[:, width:] == NO_TOKEN).all()
        compare(
            replace(own, tokens=own.tokens[:, :width], log_probs=own.log_probs[:, :width]),
            expected[node],
            exact,
        )


def test_a_parent_that_was_in_no_frontier_is_refused(made: dict[str, Make]) -> None:
    for name in ("eagle", "lm", "ngram"):
        drafter, text, rows = opened(made, name)
        with pytest.raises(ValueError, match=r"nodes \[9\] are not of growth 1"):
            drafter.grow_together([GrowRequest(text.name, 1, Frontier([2, 1], [9, 2], [3, 3]), 4, *rows)])


@pytest.mark.parametrize("sampling", [0, 2])
@pytest.mark.parametrize(
    "name", ["eagle", "eagle of a part", "eagle bf16", "eagle3", "lm of a part", "ngram", "eagle+lm+ngram"]
)
def test_tokens_that_are_ruled_out_come_last_or_not_at_all(
    made: dict[str, Make], name: str, sampling: int
) -> None:
    drafter, text, rows = opened(made, name, sampling)
    free = drafter.grow_together([GrowRequest(text.name, 1, Frontier([ROOT], [-1], [0]), 6, *rows)])[0]
    proposed = [token for token in free.tokens[0].tolist() if token != NO_TOKEN]
    added = np.zeros((1, VOCAB), dtype=np.float32)
    added[0, proposed[:2]] = RULED_OUT
    request = GrowRequest(text.name, 2, Frontier([ROOT], [-1], [0]), 4, added=added)
    (found,) = drafter.grow_together([request])
    assert not set(proposed[:2]) & set(found.tokens[0].tolist())
    assert not np.isnan(found.log_probs).any()
    only = np.full((1, VOCAB), RULED_OUT, dtype=np.float32)
    only[0, proposed[-1]] = 0.0
    request = GrowRequest(text.name, 3, Frontier([ROOT], [-1], [0]), 1, added=only)
    (found,) = drafter.grow_together([request])
    assert found.tokens[0].tolist() == [proposed[-1]]
    assert not np.isnan(found.log_probs).any()
