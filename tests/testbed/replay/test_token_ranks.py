"""Ranks of drawn tokens among a drafter's proposals."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import DraftLayer
from flowedge.engine.jobs import GrowDraft
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.replay.path_drafter import History, PathDrafter
from flowedge_testbed.replay.token_ranks import token_ranks, top_k_rates
from flowedge_testbed.true_paths.true_path import TruePath


class Listed:
    """A source that proposes the same tokens everywhere, and remembers where it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def layer(self, history: History, job: GrowDraft) -> DraftLayer:
        self.asked.append((history.rows, int(job.tokens[0])))
        return DraftLayer(np.array([[7, 8, 9]])[:, : job.width], np.zeros((1, job.width)))


def test_each_token_after_the_first_has_its_rank_below_the_true_text() -> None:
    source = Listed()
    path = TruePath(2, np.array([1, 2, 7, 9, 5, 8]), np.zeros((5, 1), dtype=np.float32))
    assert token_ranks(source, path, 3) == [3, 4, 2]
    assert source.asked == [(2, 7), (3, 9), (4, 5)]
    assert token_ranks(source, path, 2) == [3, 3, 2]


def test_the_rate_of_k_is_the_share_of_ranks_up_to_k() -> None:
    assert top_k_rates([1, 1, 2, 9], (1, 2, 8)) == {1: 0.5, 2: 0.75, 8: 0.75}
    assert top_k_rates([], (1,)) == {1: 0.0}


def test_the_bundled_drafter_ranks_most_tokens_high(pair: ModelSet, tmp_path: Path) -> None:
    path = pair.path_source(tmp_path).path(
        pair.encode("Tell me about bees."), SamplingParams(), 16, frozenset()
    )
    rates = top_k_rates(token_ranks(PathDrafter(pair.drafter, path, "ranks"), path, 64), (1, 8, 64))
    assert 0.2 < rates[1] < rates[8] <= rates[64]
