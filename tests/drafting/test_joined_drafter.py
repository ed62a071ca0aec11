"""Several drafters as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.core.errors import CapacityError
from flowedge.core.gumbel_noise import gumbel_noise
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Frontier, GrowRequest
from flowedge.drafting.joined import JoinedDrafter
from flowedge.drafting.lm import LMDrafter
from flowedge.drafting.lookup.matches import find_match
from flowedge.drafting.lookup.mixing import copy_share, first_odds, learnt_odds
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.drafting.model_drafter import Prediction
from flowedge.drafting.suffix_index import SuffixIndex
from tests.drafting.made_drafters import VOCAB, small
from tests.drafting.trees import extend, grow, grow_and_check, predict
from tests.support.seams import learnt_log_odds

PROMPT = 20  # tokens of the text that are known when the first tree is grown
SAMPLING = SamplingParams(temperature=0.8, seed=21)


@pytest.fixture(scope="module")
def models(small_lm: Callable[..., Path]) -> Callable[[], LMDrafter]:
    torch.set_num_threads(1)
    directory = small_lm(vocab_size=VOCAB)
    return lambda: small(directory)


@pytest.fixture(scope="module")
def others(small_lm: Callable[..., Path]) -> Callable[[], LMDrafter]:
    directory = small_lm(vocab_size=VOCAB, seed=1)
    return lambda: small(directory)


def after(model: LMDrafter, text: list[int]) -> np.ndarray:
    """The model's log-probabilities [VOCAB] of what follows a text."""
    model.open("alone", len(text), text[0])
    extend(model, "alone", None, np.array(text[1:]))
    found = predict(model, "alone", 1, Frontier([0], [-1], [text[-1]]))
    model.close("alone")
    return np.asarray(torch.log_softmax(found.logits[0], dim=-1))


def index_of(tokens: Sequence[int]) -> SuffixIndex:
    index = SuffixIndex()
    index.extend(tokens)
    return index


def mixture(
    texts: list[LMDrafter],
    known: list[int],
    path: list[int],
    odds: float,
    earlier: SuffixIndex | None = None,
) -> np.ndarray:
    """The definition: w of what followed in `known`, and the rest of the models' weighted geometric mean."""
    weights = (1.0,) if len(texts) == 1 else (0.6, 0.4)
    pooled = sum(weight * after(model, [*known, *path]) for weight, model in zip(weights, texts, strict=True))
    shares = np.exp(pooled) / np.exp(pooled).sum()
    match = find_match(index_of(known), tuple([*known, *path][-12:]), 1, 12, earlier)
    copied = np.zeros(VOCAB)
    for token, log_prob in match.candidates:
        copied[token] = math.exp(log_prob)
    share = copy_share(match, odds)
    mixed: np.ndarray = np.log((1 - share * copied.sum()) * shares + share * copied)
    return mixed


def learnt(
    models: list[LMDrafter], text: list[int], noise: SamplingParams | None, earlier: SuffixIndex | None
) -> float:
    """The odds that the tokens after the prompt's have taught."""
    odds = first_odds(noise)
    for place in range(PROMPT, len(text)):
        known = text[:place]
        without = mixture(models, known, [], -1e3)
        match = find_match(index_of(known), tuple(known[-12:]), 1, 12, earlier)
        odds = learnt_odds(odds, match, text[place], float(without[text[place]]))
    return odds


@pytest.mark.parametrize("count", [1, 2])
def test_children_are_the_best_of_the_mixture(
    models: Callable[[], LMDrafter], others: Callable[[], LMDrafter], count: int
) -> None:
    """Below every node of trees, with noise, earlier answers or neither, before and after learning."""
    rng = np.random.default_rng(2)
    text = rng.integers(0, 4, PROMPT + 9).tolist()
    alone = [models(), others()][:count]
    stored = index_of(rng.integers(0, 4, 30).tolist())
    for noise, earlier in ((None, None), (SAMPLING, None), (None, stored)):
        drafter = JoinedDrafter([models(), others()][:count], NGramDrafter(), VOCAB)
        drafter.open("s", 40, text[0], noise, None, earlier)
        extend(drafter, "s", None, np.array(text[1:PROMPT]))
        assert not drafter.needs_features
        for growth, stop in enumerate((PROMPT, PROMPT + 3, len(text)), start=1):
            known = text[:stop]
            odds = learnt(alone, known, noise, earlier)
            assert (odds != first_odds(noise)) == (stop > PROMPT)

            def check(
                path: list[int],
                tokens: np.ndarray,
                log_probs: np.ndarray,
                known: list[int] = known,
                odds: float = odds,
                noise: SamplingParams | None = noise,
                earlier: SuffixIndex | None = earlier,
            ) -> None:
                expected = mixture(alone, known, path, odds, earlier)
                if noise is not None:
                    drawn = gumbel_noise(noise.seed, len(known) + len(path), VOCAB)
                    expected = (expected + noise.temperature * drawn) / 0.8
                    expected = expected - np.log(np.exp(expected).sum())
                np.testing.assert_allclose(log_probs, np.sort(expected)[::-1][:4], atol=1e-3)
                np.testing.assert_allclose(log_probs, expected[tokens], atol=1e-3)

            grow_and_check(drafter, growth, 3, check, vocab=VOCAB)
            following = (PROMPT + 3, len(text), len(text))[growth - 1]
            extend(drafter, "s", None, np.array(text[stop:following]))


def test_sessions_go_back_in_all(models: Callable[[], LMDrafter]) -> None:
    """Scores that were learnt from forgotten tokens are forgotten with the tokens."""
    text = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]
    drafter = JoinedDrafter([models()], NGramDrafter(), VOCAB)
    drafter.open("s", 40, 1)
    extend(drafter, "s", None, np.array(text[1:5]))
    grow(drafter, "s", 1, Frontier([0], [-1], [text[4]]), 4)
    extend(drafter, "s", None, np.array(text[5:]))
    before = grow(drafter, "s", 2, Frontier([0], [-1], [2]), 4)
    for growth, stops in enumerate(((7, 8, 10), (3, 7, 10), (2, 10), (0, 1, 10)), start=3):
        extend(drafter, "s", None, np.array([9, 9, 1, 2]))
        drafter.rewind("s", stops[0])
        for start, stop in pairwise(stops):
            extend(drafter, "s", None, np.array(text[start + 1 : stop + 1]))
        again = grow(drafter, "s", growth, Frontier([0], [-1], [2]), 4)
        assert before.tokens.tolist() == again.tokens.tolist()
        np.testing.assert_allclose(before.log_probs, again.log_probs, atol=1e-5)
    parts = (models(), NGramDrafter())
    assert drafter.session_bytes(10) == sum(part.session_bytes(10) for part in parts)
    assert drafter.weight_bytes == sum(part.weight_bytes for part in parts)
    assert drafter.fingerprint == "small+ngram-1-12"
    drafter.close("s")


class Unasked(LMDrafter):
    """A model that is not asked, while `asked` says so."""

    asked = True

    def predict(self, requests: Sequence[GrowRequest]) -> list[Prediction]:
        assert self.asked
        return super().predict(requests)


def alone(session: str, growth: int, frontier: Frontier, tokens: Sequence[int] | None = None) -> GrowRequest:
    added = None if tokens is None else np.array(tokens)
    return GrowRequest(session, growth, frontier, 4, None, added, lookup_alone=True)


def test_lookup_is_asked_alone_and_the_models_catch_up(models: Callable[[], LMDrafter]) -> None:
    """Layers of lookup alone are those of lookup, and change no later layer of all drafters."""
    text = np.random.default_rng(5).integers(0, 4, 60).tolist()
    model = models()
    model.__class__ = Unasked
    drafter, plain, lookup = (
        JoinedDrafter([model], NGramDrafter(), VOCAB),
        JoinedDrafter([models()], NGramDrafter(), VOCAB),
        NGramDrafter(),
    )
    for each in (drafter, plain, lookup):
        each.open("s", 80, text[0])
        extend(each, "s", None, np.array(text[1:20]))
    growth, rows, lookup_rows = 1, 19, 19  # of the models, and of lookup
    for asked_alone, stop in (
        (True, 24),
        (True, 24),
        (True, 31),
        (False, 34),
        (True, 40),
        (False, 40),
        (False, 52),
    ):
        growth += 1
        behind = text[rows + 1 : stop + 1]
        root = Frontier([0], [-1], [text[stop]])
        if asked_alone:
            model.asked = False
            (found,) = drafter.grow([alone("s", growth, root, behind)])
            extend(lookup, "s", None, np.array(text[lookup_rows + 1 : stop + 1]))
            lookup_rows = stop
            odds = (0.0, *learnt_log_odds(drafter, "s"))[-1]
            weighed = lookup.layer(GrowRequest("s", growth, root, 4), odds)
            np.testing.assert_array_equal(found.tokens, weighed.tokens)
            np.testing.assert_array_equal(found.log_probs, weighed.log_probs)
            child = Frontier([1], [0], [int(found.tokens[0, 0])])
            (below,) = drafter.grow([alone("s", growth, child)])
            assert below.tokens.tolist() == lookup.layer(GrowRequest("s", growth, child, 4)).tokens.tolist()
            model.asked = True
        else:
            (first,) = drafter.grow([GrowRequest("s", growth, root, 4, None, np.array(behind))])
            (second,) = plain.grow([GrowRequest("s", growth, root, 4, None, np.array(behind))])
            assert first.tokens.tolist() == second.tokens.tolist()
            np.testing.assert_allclose(first.log_probs, second.log_probs, atol=1e-5)
            rows = stop
    assert learnt_log_odds(drafter, "s") == pytest.approx(learnt_log_odds(plain, "s"))
    assert learnt_log_odds(drafter, "s")


def test_rows_that_lookup_alone_has_are_taken_back_with_an_error(models: Callable[[], LMDrafter]) -> None:
    drafter = JoinedDrafter([models()], NGramDrafter(), VOCAB)
    drafter.open("s", 8, 1)
    extend(drafter, "s", None, np.array([2, 1, 2]))
    (before,) = drafter.grow([alone("s", 1, Frontier([0], [-1], [1]), [1])])
    with pytest.raises(CapacityError, match="holds 8 rows"):
        drafter.grow([alone("s", 2, Frontier([0], [-1], [1]), [1, 2, 1, 2, 1, 2])])
    (again,) = drafter.grow([alone("s", 3, Frontier([0], [-1], [1]), [1])])
    assert before.tokens.tolist() == again.tokens.tolist()
    without = JoinedDrafter([models()], None, VOCAB)
    without.open("s", 8, 1)
    with pytest.raises(ValueError, match="no lookup is joined"):
        without.grow([alone("s", 1, Frontier([0], [-1], [1]), [1])])


def test_lookup_counts_for_more_the_more_it_is_right() -> None:
    index = index_of((1, 2, 3, 4, 5, 6, 1, 2))
    match = find_match(index, (6, 1, 2), 1, 12)
    assert (match.length, match.distinct) == (2, 1)
    right = learnt_odds(0.0, match, 3, math.log(0.2))
    wrong = learnt_odds(0.0, match, 7, math.log(0.2))
    assert copy_share(match, wrong) < copy_share(match, 0.0) < copy_share(match, right) < 1
    nothing = find_match(index, (9,), 1, 12)
    assert copy_share(nothing, 5.0) == 0 and learnt_odds(0.5, nothing, 3, -1.0) == 0.5
