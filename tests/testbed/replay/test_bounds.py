"""C(M), T_lat and the bounds that follow from both, against counts by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowedge.core.sampling import SamplingParams
from flowedge.core.tree import DraftTree
from flowedge.drafting.drafter import DraftLayer, padded_layer
from flowedge.engine.jobs import GrowDraft
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases
from flowedge_testbed.replay.path_coverage import (
    BEAM,
    CHILDREN,
    DEPTH,
    UNDRAFTED,
    CoverageStore,
    TreeCoverage,
    path_coverage,
    roots,
    tree_sizes,
)
from flowedge_testbed.replay.path_drafter import History, PathDrafter
from flowedge_testbed.replay.run_bounds import bound_together, trip_s
from flowedge_testbed.scenario import read_scenario
from flowedge_testbed.true_paths.path_store import PathStore
from flowedge_testbed.true_paths.true_path import TruePath
from testbed.tools.sample_runs import SCENARIO

# Children of each token with their log-probabilities. Best first, with cumulative scores: the root, 5 (-0.5),
# 6 (-0.7), 8 (-0.8), 2 (-1.0), 3 (-1.1), 7 (-1.4), 4 (-3.1).
CHILDREN_OF = {
    1: [(5, -0.5), (2, -1.0)],
    5: [(6, -0.2), (7, -0.9)],
    6: [(8, -0.1)],
    2: [(3, -0.1)],
    3: [(4, -2.0)],
}


class Written:
    """A source of layers in which a token has the same children everywhere."""

    def layer(self, history: History, job: GrowDraft) -> DraftLayer:
        return padded_layer([CHILDREN_OF.get(token, []) for token in job.tokens.tolist()])


def path_of(tokens: Sequence[int], prompt: int) -> TruePath:
    return TruePath(prompt, np.array(tokens), np.zeros((len(tokens) - 1, 1), dtype=np.float32))


def test_a_tree_is_as_deep_on_the_path_as_its_best_rows_are() -> None:
    assert tree_sizes(Written(), path_of([9, 1, 2, 3, 4], 1), 1) == [5, 6, 8]
    assert tree_sizes(Written(), path_of([9, 1, 5, 6], 1), 1) == [2, 3]
    assert tree_sizes(Written(), path_of([9, 1, 2, 9], 1), 1) == [5], (
        "what lies deeper elsewhere comes before"
    )
    assert tree_sizes(Written(), path_of([9, 1, 9], 1), 1) == []


def test_depth_is_the_mean_over_trees() -> None:
    coverage = TreeCoverage.of([[5, 6, 8], []])
    assert [coverage.depth(rows) for rows in (0, 1, 4, 5, 5.5, 6, 8, 1000)] == [
        0,
        0,
        0,
        0.5,
        0.75,
        1,
        1.5,
        1.5,
    ]
    assert UNDRAFTED.depth(64) == 0


def test_trees_are_spread_over_the_answer() -> None:
    assert list(roots(path_of(range(3 + 128), 3))) == list(range(3, 122, 4)), "nine tokens follow the last"
    assert list(roots(path_of(range(3 + 5), 3))) == [3]


def depth_in_best(tree: DraftTree, path: TruePath, root: int, rows: int) -> int:
    best, node, depth = set(tree.best(rows)), 0, 0
    while (child := tree.child(node, path.draw(root + depth + 1))) is not None and child in best:
        node, depth = child, depth + 1
    return depth


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_reach_is_that_of_whole_draft_trees(pair: ModelSet, tmp_path: Path, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5)
    prompt = pair.encode("Tell me a long story about the sea.")
    store = PathStore(tmp_path / "paths", pair.checkpoint, pair.head, pair.drafter.taps)
    path = store.path(prompt, sampling, 14, pair.eos)
    noise = sampling if temperature else None
    drafting = PathDrafter(pair.drafter, path, "whole", noise)
    trees: dict[int, DraftTree] = {}
    for root in roots(path):
        tree, history, frontier = DraftTree(path.draw(root), root), History(root), [0]
        for _ in range(DEPTH):
            parents, tokens = tree.parents[frontier], tree.tokens[frontier]
            job = GrowDraft("whole", 1, np.array(frontier), parents, tokens, CHILDREN, None, None)
            layer = drafting.layer(history, job)
            above = np.repeat(frontier, layer.tokens.shape[1])
            scores = tree.scores[above] + layer.log_probs.ravel()
            grown = np.array(tree.put(above.tolist(), layer.tokens.ravel().tolist(), scores.tolist()))
            frontier = sorted(grown[np.argsort(-scores, kind="stable")[:BEAM]].tolist())
        trees[root] = tree
    drafting.close()
    coverage = path_coverage(pair.drafter, path, noise)
    assert coverage.trees == len(trees) > 1
    for rows in (1, 2, 8, 40, 200, 3000):
        depths = [depth_in_best(tree, path, root, rows) for root, tree in trees.items()]
        assert coverage.depth(rows) == pytest.approx(np.mean(depths))
    coverages = CoverageStore(pair, tmp_path)
    assert coverages.coverage(prompt, sampling, 14, "shared") == coverage
    (file,) = (tmp_path / "coverage").iterdir()
    file.write_text('{"sizes": [3], "trees": 1}', encoding="utf-8")
    assert coverages.coverage(prompt, sampling, 14, "shared") == TreeCoverage((3,), 1), (
        "kept, not computed again"
    )


@pytest.fixture
def table1() -> PipelineProfile:
    return cases(read_scenario(SCENARIO), SCENARIO.parent)[0].emulation


def test_a_crossing_takes_every_stage_and_link_once(table1: PipelineProfile) -> None:
    check_crossing(replace(table1, verification="draft-node"), 4 * (64 + 16 * (8192 + 4)))


def test_the_last_link_is_crossed_by_the_rows_on_the_path_alone(table1: PipelineProfile) -> None:
    check_crossing(replace(table1, verification="last-stage"), 3 * (64 + 16 * (8192 + 4)) + 64 + 8192 + 4)


def check_crossing(table1: PipelineProfile, states: int) -> None:
    """states: bytes of hidden states on all links, with 64 bytes of header and 4 a row of index."""
    trip = trip_s(ProfileCosts(table1), 16, 256)
    doubled = [link.model_copy(update={"mbps": 2 * (link.mbps or 0)}) for link in table1.links]
    sent = states + 64 + 16 * (4 + 4)  # on the first link, tokens
    faster = trip_s(ProfileCosts(replace(table1, links=tuple(doubled))), 16, 256)
    assert trip - faster == pytest.approx(sent / 2 / (150e6 / 8))
    later = tuple(link.model_copy(update={"latency_ms": link.latency_ms + 3}) for link in table1.links)
    assert trip_s(ProfileCosts(replace(table1, links=later)), 16, 256) - trip == pytest.approx(0.015)
    shaking = tuple(link.model_copy(update={"jitter_ms": 4}) for link in table1.links)
    assert trip_s(ProfileCosts(replace(table1, links=shaking)), 16, 256) - trip == pytest.approx(0.01)


def test_a_crossing_of_rows_between_two_numbers_is_between_theirs(table1: PipelineProfile) -> None:
    costs = ProfileCosts(table1)
    one, two, three = (trip_s(costs, rows, 256) for rows in (1, 2, 3))
    assert trip_s(costs, 2.25, 256) == pytest.approx(0.75 * two + 0.25 * three)
    assert trip_s(costs, 0.0, 256) == one < three


def test_requests_reach_their_bounds_one_after_the_other() -> None:
    # 10 tokens at 5 tokens/s, 10 at 20.
    assert bound_together([11, 11], [5.0, 20.0]) == pytest.approx(20 / 2.5)
    assert bound_together([1], [5.0]) is None
