"""The probabilities and the tree of `auto`: acceptance and candidates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.arrays import NO_TOKEN
from flowedge.core.messages import StageTime
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.acceptance import ProposalAcceptance
from flowedge.strategies.auto.auto import Auto
from flowedge.strategies.auto.candidate_tree import CandidateTree
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.events import Layer
from flowedge.strategies.settings import AutoSettings
from tests.core.trees import path, paths
from tests.strategies.script import Script


def shares(acceptance: ProposalAcceptance, *probs: float) -> list[float]:
    """Of proposals below one node, by the drafter's probabilities."""
    return np.exp(acceptance.log_share(np.log([probs])))[0].tolist()


def test_what_nothing_is_known_of_is_the_drafters_word():
    acceptance = ProposalAcceptance(20.0)
    assert shares(acceptance, 0.74, 0.17, 0.0005) == pytest.approx([0.74, 0.17, 0.0005])
    assert shares(acceptance, 1.0, 0.0001) == pytest.approx([1.0, 0.0001])


def test_shares_are_those_counted():
    acceptance = ProposalAcceptance(10.0)
    for accepted in (0, 1, 1, None):
        acceptance.observe(np.log([0.42, 0.17]), accepted)
    assert shares(acceptance, 0.42, 0.17) == pytest.approx([5.2 / 14, 3.7 / 14])
    between = math.sqrt(5.2 / 14 * 0.17)  # linear in the logarithm, and none of 0.17 was the likeliest
    assert shares(acceptance, math.sqrt(0.42 * 0.17)) == pytest.approx([between])


def test_a_share_never_falls_as_the_drafter_is_surer():
    acceptance = ProposalAcceptance(1.0)
    for _ in range(30):
        acceptance.observe(np.log([0.42, 0.17]), 1)
    _, likely, unlikely = shares(acceptance, 0.43, 0.42, 0.17)
    assert likely == unlikely == pytest.approx(30.17 / 31)


class Reference:
    """A candidate tree as dictionaries by path from the root; every score is computed anew.

    `proposed`: by path, what is proposed below it; `nodes`: score of each path that is a node.
    """

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.nodes: dict[tuple[int, ...], float] = {(): 0.0}
        self.proposed: dict[tuple[int, ...], dict[int, float]] = {}

    def take(self, layer: dict[tuple[int, ...], dict[int, float]]) -> None:
        layer = {where: below for where, below in layer.items() if where in self.nodes}
        self.proposed |= layer
        self.admit(list(layer))

    def admit(self, below: list[tuple[int, ...]]) -> None:
        scores = {
            (*where, token): self.nodes[where] + log_prob
            for where in below
            for token, log_prob in self.proposed.get(where, {}).items()
        }
        self.nodes |= {node: score for node, score in scores.items() if score >= self.floor}

    def effective(self, node: tuple[int, ...]) -> float:
        return min(self.nodes[node[:length]] for length in range(len(node) + 1))

    def follow(self, walked: tuple[int, ...]) -> bool:
        """Move the root down a path; says whether its end was proposed."""
        last, token = walked[:-1], walked[-1]
        if walked not in self.nodes:
            if token not in self.proposed.get(last, {}):
                return False
            self.nodes[walked] = self.nodes[last] + self.proposed[last][token]
        depth, base = len(walked), self.effective(walked)
        kept = {node: min(score, base) - base for node, score in self.nodes.items() if node[:depth] == walked}
        self.nodes = {node[depth:]: score for node, score in kept.items()}
        self.proposed = {
            where[depth:]: below for where, below in self.proposed.items() if where[:depth] == walked
        }
        self.admit(list(self.nodes))
        return True


# No floor is a product of the probabilities that are proposed: rounding would decide what is a node.
@given(seed=st.integers(0, 2**32), floor=st.sampled_from([0.0011, 0.05, 0.3]), most=st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_the_candidate_tree_is_that_of_the_reference(seed, floor, most):
    rng = np.random.default_rng(seed)
    width, vocab = 3, 5
    tree = CandidateTree(width, math.log(floor), ProposalAcceptance(1e9))  # scores stay the drafter's word
    tree.restart(0, 7)
    reference = Reference(math.log(floor))
    word = ProposalAcceptance(1e9)
    for _ in range(30):
        if rng.random() < 0.2:
            tree.regrow()
        grow = tree.grow_likeliest(most)
        if grow is not None:
            count = int(rng.integers(width + 1))
            shape = (len(grow.nodes), count)
            tokens = np.array([rng.permutation(vocab)[:count] for _ in grow.nodes]).reshape(shape)
            log_probs = np.log(np.sort(rng.choice([0.02, 0.1, 0.4, 0.9], size=shape))[:, ::-1])
            asked = [asked_path(tree, name) for name in grow.nodes]
            scores = word.log_share(log_probs)
            reference.take(
                {
                    where: dict(zip(tokens[i].tolist(), scores[i].tolist(), strict=True))
                    for i, where in enumerate(asked)
                }
            )
            tree.take(Layer(grow.growth, grow.nodes, tokens, log_probs))
        if rng.random() < 0.3:
            walked = random_walk(tree, rng, vocab)
            there = paths(tree.tree)
            found = tree.follow([there[walked[:length]] for length in range(len(walked))], walked[-1])
            assert (found is not None) == reference.follow(walked)
            if found is None:
                tree.restart(walked[-1], tree.tree.context + len(walked))
                reference = Reference(math.log(floor))
            else:
                tree.reroot(found)
        there = paths(tree.tree)
        assert set(there) == set(reference.nodes)
        scored = {where: float(tree.tree.scores[node]) for where, node in there.items()}
        assert scored == pytest.approx(reference.nodes, abs=1e-6)


def test_no_token_is_no_proposal():
    """A replayed answer draws none behind its end, and a lookup proposes fewer than the tree has room for."""
    tree = CandidateTree(4, math.log(1e-3), ProposalAcceptance(10.0))
    tree.restart(0, 7)
    grow = tree.grow_likeliest(1)
    assert grow is not None
    tree.take(Layer(grow.growth, grow.nodes, np.array([[3, 5]]), np.log([[0.7, 0.2]])))
    assert tree.follow([0], NO_TOKEN) is None
    assert tree.follow([0], 5) is not None


def asked_path(tree: CandidateTree, name: int) -> tuple[int, ...]:
    (node,) = np.flatnonzero(tree.names == name)
    return path(tree.tree, int(node))


def random_walk(tree: CandidateTree, rng: np.random.Generator, vocab: int) -> tuple[int, ...]:
    """A path of nodes from the root, and a token below its end that need not be one."""
    walked: tuple[int, ...] = ()
    there = paths(tree.tree)
    while True:
        walked = (*walked, int(rng.integers(vocab)))
        if walked not in there or rng.random() < 0.5:
            return walked


def test_sessions_of_one_pipeline_may_have_different_options():
    measured, trip = MeasuredPipeline(), PipelineTrip(1, 3.0, (StageTime(1, 1.0),) * 3)
    for rows in (1, 16, 4):
        strategy = Auto(AutoSettings(segment_rows=rows), measured)
        script = Script(strategy, granted=9, stages=3, trips=(trip,))
        if script.grow is not None:
            script.layer([[1, 2]], [[0.6, 0.4]])
        assert script.sends or script.appended
        strategy.end()
