"""Prompt lookup against a search through the text, written down from the definition."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.drafting.drafter import DraftPrefix, Frontier
from flowedge.drafting.lookup.answer_store import AnswerStore, EndedAnswer
from flowedge.drafting.lookup.matches import EARLIER_N, Match
from flowedge.drafting.lookup.mixing import copy_share
from flowedge.drafting.lookup.ngram import NGramDrafter
from tests.drafting.trees import children, extend, grow, grow_and_check

TEXT = st.lists(st.integers(0, 3), min_size=2, max_size=40)


def brute_force(
    text: list[int], path: list[int], max_n: int, min_n: int, earlier: list[list[int]]
) -> list[tuple[int, float]]:
    """Witten and Bell's estimate of each token after text + path, by looking at every place of the texts.

    It is weighed by how often the longest match is a copy.
    """
    suffix = [*text, *path]
    texts = [*earlier, text]
    estimates: dict[int, float] = {}
    share = 1.0
    best_place: dict[int, tuple[int, int]] = {}  # the text and the place
    for n in range(min_n, max_n + 1):
        if n > len(suffix):
            break
        places = [
            (number, i)
            for number, each in enumerate(texts)
            for i in range(n, len(each))
            if each[i - n : i] == suffix[-n:] and (each is text or n >= EARLIER_N)
        ]
        if not places:
            continue
        following = [texts[number][i] for number, i in places]
        distinct, total = len(set(following)), len(following)
        share = copy_share(Match(n, distinct, [(0, 0.0)]), 0.0)
        estimates = {
            token: (following.count(token) + distinct * estimates.get(token, 0.0)) / (total + distinct)
            for token in {*following, *estimates}
        }
        best_place.update(zip(following, places, strict=True))
    ranked = sorted(sorted(estimates, key=best_place.__getitem__, reverse=True), key=lambda t: -estimates[t])
    return [(token, math.log(share * estimates[token])) for token in ranked]


def begin(drafter: NGramDrafter, text: list[int], earlier: list[list[int]] | None = None) -> None:
    store = AnswerStore.holding([EndedAnswer("", tuple(each)) for each in earlier or ()])
    drafter.open("s", 100, text[0], earlier=store.of(""))
    extend(drafter, "s", None, np.array(text[1:], dtype=np.int64))


def check_growth(
    drafter: NGramDrafter,
    text: list[int],
    growth: int,
    sizes: tuple[int, int],
    earlier: list[list[int]] | None = None,
) -> None:
    def check(path: list[int], tokens: np.ndarray, log_probs: np.ndarray) -> None:
        wanted = brute_force(text, path, *sizes, earlier or [])[:3]
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


@settings(max_examples=150, deadline=None)
@given(TEXT, st.lists(TEXT, max_size=3), st.integers(1, 4), st.integers(0, 10_000))
def test_earlier_answers_are_searched_as_well(
    text: list[int], earlier: list[list[int]], max_n: int, growth: int
) -> None:
    drafter = NGramDrafter(max_n)
    begin(drafter, text, earlier)
    check_growth(drafter, text, growth, (max_n, 1), earlier)


def test_the_own_text_is_later_than_earlier_answers() -> None:
    drafter = NGramDrafter()
    begin(drafter, [1, 2, 3, 1, 2], [[1, 2, 4]])
    assert grow(drafter, "s", 1, Frontier([0], [-1], [2]), 3).tokens.tolist() == [[3, 4]]


def test_a_kept_session_holds_no_earlier_answers() -> None:
    store = AnswerStore.holding([EndedAnswer("", (1, 2, 4))])
    drafter, held = NGramDrafter(), store.of("")
    assert held is not None
    before = sys.getrefcount(held)
    drafter.open("s", 100, 1, earlier=held)
    assert sys.getrefcount(held) == before + 1
    drafter.keep("s")
    assert sys.getrefcount(held) == before
    drafter.open("t", 100, 1, prefix=DraftPrefix("s", 0))


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
    match = Match(1, 1, [(5, math.log(1 / 2))])
    assert math.isclose(best(once), math.log(copy_share(match, 0.0) * 1 / 2))
    assert best(once) < best(longer) < 0
    assert best(once) < best(twice) < 0


def test_of_equals_the_latest_comes_first() -> None:
    drafter = NGramDrafter(1)
    begin(drafter, [1, 5, 1, 6, 1, 7, 1])
    assert grow(drafter, "s", 1, Frontier([0], [-1], [1]), 3).tokens.tolist() == [[7, 6, 5]]


def test_what_cannot_be_is_refused() -> None:
    for sizes in ((2, 3), (13, 1)):
        with pytest.raises(BadRequestError, match=f"{sizes[1]} to {sizes[0]}"):
            NGramDrafter(*sizes)
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
