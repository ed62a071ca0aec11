"""Prompt lookup against a search through the text, written down from the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.drafting.drafter import Frontier
from flowedge.drafting.ngram import NGramDrafter
from tests.drafting.trees import children, extend, grow, grow_and_check

TEXT = st.lists(st.integers(0, 3), min_size=2, max_size=40)


def brute_force(text: list[int], path: list[int], max_n: int, min_n: int) -> list[tuple[int, float]]:
    """Witten and Bell's estimate of each token after text + path, by looking at every place of the text."""
    suffix = [*text, *path]
    estimates: dict[int, float] = {}
    best_place: dict[int, tuple[int, int]] = {}
    for n in range(min_n, max_n + 1):
        if n > len(suffix):
            break
        places = [i for i in range(n, len(text)) if text[i - n : i] == suffix[-n:]]
        if not places:
            break
        following = [text[i] for i in places]
        distinct, total = len(set(following)), len(following)
        estimates = {
            token: (following.count(token) + distinct * estimates.get(token, 0.0)) / (total + distinct)
            for token in {*following, *estimates}
        }
        for place in places:
            best_place[text[place]] = (n, place)
    ranked = sorted(estimates, key=lambda t: (-estimates[t], -best_place[t][1]))
    return [(token, math.log(estimates[token])) for token in ranked]


def begin(drafter: NGramDrafter, text: list[int]) -> None:
    drafter.open("s", 100, text[0])
    extend(drafter, "s", None, np.array(text[1:], dtype=np.int64))


def check_growth(drafter: NGramDrafter, text: list[int], growth: int, sizes: tuple[int, int]) -> None:
    def check(path: list[int], tokens: np.ndarray, log_probs: np.ndarray) -> None:
        wanted = brute_force(text, path, *sizes)[:3]
        assert [token for token, _ in wanted] == tokens.tolist()
        np.testing.assert_allclose([value for _, value in wanted], log_probs)

    grow_and_check(drafter, growth, 3, check, vocab=5, width=3, frontier=2)


@settings(max_examples=150, deadline=None)
@given(TEXT, st.integers(1, 3), st.integers(0, 3), st.integers(0, 10_000))
def test_every_layer_equals_the_search(text: list[int], min_n: int, more: int, growth: int) -> None:
    drafter = NGramDrafter(min_n + more, min_n)
    begin(drafter, text)
    check_growth(drafter, text, growth, (min_n + more, min_n))


@settings(max_examples=100, deadline=None)
@given(TEXT, TEXT, st.data())
def test_going_back_leaves_no_trace(text: list[int], after: list[int], data: st.DataObject) -> None:
    drafter = NGramDrafter(3, 1)
    begin(drafter, text)
    rows = data.draw(st.integers(0, len(text) - 1))
    drafter.rewind("s", rows)
    extend(drafter, "s", None, np.array(after))
    check_growth(drafter, [*text[: rows + 1], *after], 1, (3, 1))


def test_what_was_never_seen_has_no_children() -> None:
    drafter = NGramDrafter()
    begin(drafter, [1, 2, 3, 4])
    layer = grow(drafter, "s", 1, Frontier([0], [-1], [4]), 5)
    assert layer.tokens.shape == layer.log_probs.shape == (1, 0)


def test_nodes_with_fewer_children_are_padded() -> None:
    drafter = NGramDrafter(2)
    begin(drafter, [1, 2, 1, 3, 4, 1])
    grow(drafter, "s", 1, Frontier([0], [-1], [1]), 5)
    layer = grow(drafter, "s", 1, Frontier([1, 2, 3], [0, 0, 0], [1, 4, 7]), 5)
    assert [children(layer, i)[0].tolist() for i in range(3)] == [[3, 2], [1], []]


def test_more_and_longer_matches_are_more_certain() -> None:
    def best(text: list[int]) -> float:
        drafter = NGramDrafter()
        begin(drafter, text)
        return float(grow(drafter, "s", 1, Frontier([0], [-1], [0]), 1).log_probs[0, 0])

    once, longer, twice = [9, 1, 5, 8, 1], [9, 1, 5, 9, 1], [9, 1, 5, 8, 1, 5, 7, 1]
    assert math.isclose(best(once), math.log(1 / 2))
    assert best(once) < best(longer) < 0
    assert best(once) < best(twice) < 0


def test_of_equals_the_latest_comes_first() -> None:
    drafter = NGramDrafter(1)
    begin(drafter, [1, 5, 1, 6, 1, 7, 1])
    assert grow(drafter, "s", 1, Frontier([0], [-1], [1]), 3).tokens.tolist() == [[7, 6, 5]]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BadRequestError, match="3 to 2"):
        NGramDrafter(2, 3)
    drafter = NGramDrafter()
    drafter.open("s", 2, 1)
    extend(drafter, "s", None, np.array([1, 1]))
    with pytest.raises(CapacityError, match="2 rows"):
        extend(drafter, "s", None, np.array([1]))
    with pytest.raises(ValueError, match="cannot go back to 3"):
        drafter.rewind("s", 3)
    with pytest.raises(ValueError, match="not of growth"):
        grow(drafter, "s", 1, Frontier([2], [1], [3]), 3)
    drafter.close("s")
    drafter.close("s")
