"""Requests whose nodes are deferred, and requests that rule tokens out."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.arrays import NO_TOKEN
from flowedge.device.kernel_library import missing_reason
from flowedge.drafting.drafter import ROOT, DraftLayer, Frontier, GrowRequest
from flowedge.drafting.ranking import RULED_OUT
from tests.drafting.made_drafters import EXACT, NAMES, VOCAB, Make
from tests.drafting.test_drafting_together import ROWS, SAMPLINGS, Text, compare
from tests.drafting.trees import grow

CHAIN = Frontier([1, 2, 3, 4, 5], [ROOT, 1, 2, ROOT, 3], [7, 8, 9, 5, 11])


def opened(made: dict[str, Make], name: str, sampling: int = 0):
    drafter, text = made[name](), Text.random(3)
    drafter.open(text.name, ROWS, int(text.tokens[0]), SAMPLINGS[sampling])
    return drafter, text, (text.features[:40], text.tokens[1:41])


def together(made: dict[str, Make], name: str, frontier: Frontier) -> DraftLayer:
    """The layer of a frontier that comes with its true rows, beside another session."""
    drafter, text, rows = opened(made, name)
    beside = Text.random(5)
    drafter.open(beside.name, ROWS, int(beside.tokens[0]))
    root = Frontier([ROOT], [-1], [0])
    layer, _ = drafter.grow(
        [
            GrowRequest(text.name, 1, frontier, 4, *rows),
            GrowRequest(beside.name, 1, root, 4, beside.features[:9], beside.tokens[1:10]),
        ]
    )
    return layer


@pytest.mark.parametrize("name", ["lm", "lm of a part", "lm by torch", "ngram", "lm+ngram"])
def test_nodes_below_each_other_in_one_request_are_those_one_after_the_other(
    made: dict[str, Make], name: str
) -> None:
    found = together(made, name, CHAIN)
    drafter, text, rows = opened(made, name)
    drafter.grow([GrowRequest(text.name, 1, Frontier([ROOT], [-1], [0]), 4, *rows)])
    nodes = zip(CHAIN.nodes, CHAIN.parents, CHAIN.tokens, strict=True)
    for row, (node, parent, token) in enumerate(nodes):
        alone = grow(drafter, text.name, 1, Frontier([node], [parent], [token]), 4)
        width = alone.tokens.shape[1]
        assert (found.tokens[row, width:] == NO_TOKEN).all()
        own = DraftLayer(found.tokens[row : row + 1, :width], found.log_probs[row : row + 1, :width])
        compare(own, alone, name in EXACT and not missing_reason())


@pytest.mark.parametrize("name", [name for name in NAMES if "eagle" in name])
def test_a_head_predicts_below_nodes_of_the_same_request(made: dict[str, Make], name: str) -> None:
    """The first nodes have the state that they have alone; those below them an older state."""
    found = together(made, name, CHAIN)
    first = together(made, name, Frontier([1, 4], [ROOT, ROOT], [7, 5]))
    for row, at in enumerate((0, 3)):
        assert found.tokens[at].tolist() == first.tokens[row].tolist()
    assert found.tokens.shape == (5, 4)
    assert np.isfinite(found.log_probs).all()
    assert len({tuple(row) for row in found.log_probs.tolist()}) == 5, "the rows do not see their own tokens"


def test_a_parent_that_was_in_no_frontier_is_refused(made: dict[str, Make]) -> None:
    for name in ("eagle", "lm", "ngram"):
        drafter, text, rows = opened(made, name)
        with pytest.raises(ValueError, match=r"nodes \[9\] are not of growth 1"):
            drafter.grow([GrowRequest(text.name, 1, Frontier([2, 1], [9, 2], [3, 3]), 4, *rows)])


@pytest.mark.parametrize("sampling", [0, 2])
@pytest.mark.parametrize(
    "name", ["eagle", "eagle of a part", "eagle bf16", "eagle3", "lm of a part", "ngram", "eagle+lm+ngram"]
)
def test_tokens_that_are_ruled_out_come_last_or_not_at_all(
    made: dict[str, Make], name: str, sampling: int
) -> None:
    drafter, text, rows = opened(made, name, sampling)
    free = drafter.grow([GrowRequest(text.name, 1, Frontier([ROOT], [-1], [0]), 6, *rows)])[0]
    proposed = [token for token in free.tokens[0].tolist() if token != NO_TOKEN]
    added = np.zeros((1, VOCAB), dtype=np.float32)
    added[0, proposed[:2]] = RULED_OUT
    request = GrowRequest(text.name, 2, Frontier([ROOT], [-1], [0]), 4, added=added)
    (found,) = drafter.grow([request])
    assert not set(proposed[:2]) & set(found.tokens[0].tolist())
    assert not np.isnan(found.log_probs).any()
    only = np.full((1, VOCAB), RULED_OUT, dtype=np.float32)
    only[0, proposed[-1]] = 0.0
    request = GrowRequest(text.name, 3, Frontier([ROOT], [-1], [0]), 1, added=only)
    (found,) = drafter.grow([request])
    assert found.tokens[0].tolist() == [proposed[-1]]
    assert not np.isnan(found.log_probs).any()
