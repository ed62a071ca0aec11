"""The rank of each drawn token among a drafter's proposals (pipedec, figure 3; specpipe, figure 7)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from flowedge.drafting.drafter import ROOT
from flowedge.engine.jobs import GrowDraft
from flowedge_testbed.replay.path_coverage import LayerSource
from flowedge_testbed.replay.path_drafter import History
from flowedge_testbed.true_paths.true_path import TruePath


def token_ranks(drafter: LayerSource, path: TruePath, most: int) -> list[int]:
    """Return the rank of each token of the answer after the first, 1 for the likeliest of the drafter.

    The drafter knows the true text before each token. A token that is not among the `most` likeliest has the
    rank most + 1.
    """
    return [_rank(drafter, path, root, most) for root in range(path.prompt_tokens, len(path.tokens) - 1)]


def _rank(drafter: LayerSource, path: TruePath, root: int, most: int) -> int:
    job = GrowDraft(
        "ranks", 1, np.array([ROOT]), np.array([-1]), path.tokens[root : root + 1], most, None, None
    )
    proposed = drafter.layer(History(root), job).tokens[0]
    places = np.flatnonzero(proposed == path.draw(root + 1))
    return int(places[0]) + 1 if len(places) else most + 1


def top_k_rates(ranks: Sequence[int], counts: Sequence[int]) -> dict[int, float]:
    """Return for each k the share of tokens that are among the k likeliest; 0 where there is no token."""
    ascending = sorted(ranks)
    return {k: bisect_right(ascending, k) / len(ascending) if ascending else 0.0 for k in counts}
