"""Naive PP and autoregressive decoding on scripts of events, and strategies by name."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.errors import BadRequestError
from flowedge.strategies.autoregressive import Autoregressive
from flowedge.strategies.base import HierarchicalStrategy
from flowedge.strategies.choice import WITH_MIDDLE_MODELS, WITHOUT_DRAFTER
from flowedge.strategies.commands import AcceptPath, Append, Emit, Grow, Send
from flowedge.strategies.events import CreditGranted, Layer, Prefilled, Verified
from flowedge.strategies.growth import Growth
from flowedge.strategies.published.naive_pp import NaivePP
from flowedge.strategies.registry import STRATEGIES, make_strategy
from flowedge.strategies.settings import TreeSettings
from tests.strategies.script import Script
from tests.strategies.script_layers import FIRST, SECOND, grow_all, small
from tests.support.seams import base_growth


@pytest.mark.parametrize(
    "stages, sizes",
    [(4, [16] * 5), (8, [8] + [9] * 8), (16, [4] * 5 + [5] * 12), (2, [26, 27, 27]), (1, [40, 40])],
)
def test_naive_pp_sends_the_tree_in_segments_that_are_verified_together(stages, sizes):
    strategy = NaivePP(TreeSettings())
    script = Script(strategy, stages=stages)
    grow_all(script, np.random.default_rng(0))
    for sent in range(1, len(sizes)):
        assert len(script.sends) == sent, "a segment for each credit"
        script.credit()
    assert [len(send.tokens) for send in script.sends] == sizes
    assert [send.more for send in script.sends] == [True] * (len(sizes) - 1) + [False]
    base = base_growth(strategy).base
    sent_tokens = [token for send in script.sends for token in send.tokens]
    assert sent_tokens == base.tokens[base.best(80)].tolist()
    script.credit()
    assert len(script.sends) == len(sizes) and script.grow is None, "the tree is verified before the next"
    assert len(script.in_flight) == 1 and len(script.in_flight[0]) == 80


def test_naive_pp_drafts_a_new_tree_from_the_drawn_token():
    script = Script(NaivePP(small()), stages=0)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert script.sends == [Send((0, 1, 3, 2, 5), (-1, 5, 6, 5, 8))]
    commands = script.verified([5, 6, 7], 9)
    assert commands == [
        Emit((1, 3, 9)),
        AcceptPath((5, 6, 7), None, ends_round=True),
        Grow(2, (0,), (-1,), (9,), 2),
    ]
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert len(script.sends) == 1, "there is no credit"
    script.credit()
    assert script.sends[1] == Send((9, 1, 3, 2, 5), (-1, 8, 9, 8, 11))


def test_autoregressive_appends_each_drawn_token_once():
    strategy = Autoregressive()
    assert not strategy.needs_drafter
    assert strategy.max_draft_rows == 0
    assert strategy.handle(Prefilled(5, 8, 1)) == [Emit((8,)), Append(8)]
    assert strategy.handle(CreditGranted()) == []
    assert strategy.handle(Verified((5,), 9)) == [Emit((9,)), Append(9)]
    assert strategy.handle(Verified((6,), 4)) == [Emit((4,))], "there is no credit"
    assert strategy.handle(CreditGranted()) == [Append(4)]
    assert strategy.handle(CreditGranted()) == []


def test_a_growth_keeps_the_best_children_as_its_frontier():
    growth = Growth(3, 0, 5, top_k=2, depth=2)
    growth.add(Layer(3, (0,), np.array([[1, 2]]), np.log(np.array([[0.6, 0.3]]))))
    assert growth.next_layer() == Grow(3, (1, 2), (0, 0), (1, 2), 2)
    assert growth.frontier_score() == pytest.approx(np.log(0.6))
    growth.add(Layer(3, (1, 2), np.array([[3, 4], [5, 6]]), np.log(np.array([[0.9, 0.05], [0.5, 0.4]]))))
    assert growth.finished
    assert growth.next_layer().tokens == (3, 5)
    assert growth.frontier_score() == pytest.approx(np.log(0.54))


def test_a_growth_follows_the_root_and_nodes_keep_their_names():
    growth = Growth(3, 0, 5, top_k=2, depth=2)
    growth.add(Layer(3, (0,), np.array([[1, 2]]), np.log(np.array([[0.6, 0.3]]))))
    growth.follow([2])
    assert (growth.base.tokens.tolist(), growth.base.context) == ([2], 6)
    layer = np.array([[3, 4], [5, 6]]), np.log(np.array([[0.9, 0.05], [0.5, 0.4]]))
    growth.add(Layer(3, (1, 2), *layer))
    assert growth.base.tokens.tolist() == [2, 5, 6], "node 1 was pruned while its children were drafted"
    assert growth.base.scores[1:] == pytest.approx(np.log([0.5, 0.4]))
    assert growth.next_layer() == Grow(3, (3, 4), (2, 2), (5, 6), 2)
    with pytest.raises(KeyError):
        growth.follow([9])


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_made_by_name(name):
    assert make_strategy(name, {}).name == name


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("magic", {}, "magic"),
        ("flowspec", {"tree_node": 3}, "tree_node"),
        ("flowspec", {"tree_nodes": 2.5}, "whole number"),
        ("flowspec", {"tree_nodes": 0}, "1 or more"),
        ("naive_pp", {"depth": -1}, "1 or more"),
        ("flowspec", {"score_aware": 2}, "0 or more, 1 at most"),
        ("flowspec_paper", {"early_stop": 0.5}, "whole number"),
        ("flowspec", {"depth": float("nan")}, "whole number"),
        ("flowspec", {"depth": float("inf")}, "whole number"),
        ("autoregressive", {"depth": 3}, "no options"),
    ],
)
def test_options_that_make_no_sense_are_refused(name, options, problem):
    with pytest.raises(BadRequestError, match=problem):
        make_strategy(name, options)


def test_the_choice_of_strategies_says_of_each_what_its_class_says():
    made = {name: make_strategy(name, {}) for name in STRATEGIES}
    assert {name for name in made if not made[name].needs_drafter} == set(WITHOUT_DRAFTER)
    hierarchies = {name for name in made if isinstance(made[name], HierarchicalStrategy)}
    assert hierarchies == set(WITH_MIDDLE_MODELS)
