"""The estimates and the tree of `auto`: trip times, acceptance and candidates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.acceptance import ProposalAcceptance
from flowedge.strategies.auto.candidate_tree import CandidateTree
from flowedge.strategies.auto.segment_rows import WideSegmentGain, rows_worth, single_rows_pay
from flowedge.strategies.auto.time_estimates import FirstStageBacklog
from flowedge.strategies.auto.trip_estimate import TripEstimate
from flowedge.strategies.events import Layer
from tests.core.trees import path, paths


def trips(base: float, slope: float, rows: tuple[int, ...]) -> list[PipelineTrip]:
    return [PipelineTrip(count, base + slope * count) for count in rows]


def test_a_line_of_trips_is_recovered():
    estimate = TripEstimate()
    estimate.observe(trips(0.3, 0.002, (128, 128, 5, 20, 48, 33, 48, 2, 60, 17) * 4))
    assert estimate.seconds == pytest.approx(0.3, rel=0.02)
    assert estimate.row_share == pytest.approx(0.002 / 0.3, rel=0.05)


def test_a_single_row_is_a_case_apart():
    estimate = TripEstimate(single_row_share=0.5)
    assert estimate.single_row_share == 0.5, "the profile's word"
    estimate.observe(trips(0.8, 0.0, (128, 20, 5, 30) * 10))
    assert estimate.base_seconds(1) == pytest.approx(0.5 * estimate.base_seconds(2))
    estimate.observe([PipelineTrip(1, 0.2)] * 30)
    assert estimate.single_row_share == pytest.approx(0.25, rel=0.02)
    assert TripEstimate().single_row_share is None


def test_a_row_goes_while_it_gains_more_than_it_delays():
    probabilities = np.array([1.0, 0.5, 0.2, 0.1, 0.1])
    assert rows_worth(probabilities, 0.0) == 5
    assert rows_worth(probabilities, 0.1) == 3, "0.1 x 1.7 is more than 0.1"
    assert rows_worth(probabilities, 9.0) == 1, "the first in any case"
    assert rows_worth(np.zeros(0), 1.0) == 0


def test_single_rows_pay_where_they_are_quicker_by_more_than_they_miss():
    gain = WideSegmentGain()
    for _ in range(200):
        gain.observe(np.array([0.25, 1.0, 0.5, 0.25]), 2)
    assert gain.gain == pytest.approx(2.0 / 1.5, rel=0.01)
    assert single_rows_pay(0.7, gain.gain)
    assert not single_rows_pay(0.8, gain.gain)


def test_the_first_stage_is_busy_while_the_pipeline_fills():
    backlog = FirstStageBacklog()
    backlog.add_segment(0.3)
    backlog.pass_time(0.1)
    assert (backlog.exceeds(0.15), backlog.exceeds(0.25)) == (True, False)
    backlog.pipeline_filled()
    assert not backlog.exceeds(0.0), "one goes in as one comes out"
    backlog.pipeline_emptied()
    assert not backlog.exceeds(0.0), "what it worked on is dropped"


def test_a_change_in_mid_request_is_followed():
    estimate = TripEstimate()
    estimate.observe(trips(0.3, 0.001, (10, 40, 128) * 20))
    estimate.observe(trips(0.6, 0.012, (2, 48, 96) * 30))
    assert estimate.seconds == pytest.approx(0.6, rel=0.1)
    assert estimate.row_share == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize("rows", [2, 20, 64, 128])
def test_one_row_count_gives_the_line_that_is_taken_for_granted(rows):
    estimate = TripEstimate()
    assert (estimate.seconds, estimate.row_share) == (0.0, pytest.approx(0.3 / 64))
    estimate.observe(trips(0.5, 0.0, (rows,) * 3))
    assert estimate.row_share == pytest.approx(0.3 / 64)
    assert estimate.seconds * (1 + estimate.row_share * rows) == pytest.approx(0.5)


def test_rows_that_cost_everything_are_dear_not_free():
    estimate = TripEstimate()
    estimate.observe([PipelineTrip(rows, 0.01 * rows**2) for rows in (10, 60) * 20])
    assert estimate.row_share > 0.01


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
