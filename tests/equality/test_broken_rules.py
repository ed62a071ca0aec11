"""Grammars that cannot be followed any more: an answer fails where it comes there, and nowhere before."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from flowedge.core.errors import GrammarError
from flowedge.core.request import Failed, Request
from flowedge.core.sampling import SamplingParams
from flowedge.models.lm_head import LMHead
from flowedge.models.sampling.path_rules import PathRules
from flowedge.planning.virtual_pipeline import TimedOutput
from flowedge.strategies.registry import STRATEGIES
from tests.equality.conftest import Pair, drawn, expected, finished, outputs_of, text_of, token_ids
from tests.equality.test_rules import RULES, TOKENS, asked, likelihoods, ruled
from tests.support.breadth import dealt, dealt_diagonally, thinnest

pytestmark = pytest.mark.slow
GREEDY = SamplingParams()
LIMIT = 21  # tokens of an answer after which the grammar cannot be followed
SOME = ["auto", "flowspec"]
PLACES = {"draws": "apply", "drafts": "allowed"}  # what fails: the target's draws alone, or drafting as well


def break_rules(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    method = PLACES[place]
    original = getattr(PathRules, method)

    def limited(self: PathRules, *args):
        if self._matcher is not None and len(self._tokens) >= LIMIT:
            raise GrammarError("grammar (json_schema) is too complex, or cannot be followed: a limit")
        return original(self, *args)

    monkeypatch.setattr(PathRules, method, limited)


def request(pair: Pair, strategy: str, session: str = "s", **changes) -> Request:
    base = asked(pair.prompt(90), GREEDY, strategy, RULES["schema"])
    return replace(base, session=session, **changes)


def whole(pair: Pair) -> tuple[int, ...]:
    return ruled(pair, pair.prompt(90), GREEDY, TOKENS, RULES["schema"])[0]


def stop_at_the_limit(pair: Pair) -> tuple[str, ...]:
    """A stop string whose last character comes with the last token before the limit."""
    text = pair.tokenizer.decode(whole(pair)[:LIMIT])
    before = pair.tokenizer.decode(whole(pair)[: LIMIT - 1])
    stop = next(text[at:] for at in range(len(before) - 1, 0, -1) if text.find(text[at:]) == at)
    assert len(text) > len(before)
    return (stop,)


def ends_like(own: list[TimedOutput], plain: list[TimedOutput]) -> None:
    assert token_ids(own) == token_ids(plain)
    assert text_of(own) == text_of(plain)
    assert finished(own).reason == finished(plain).reason
    assert len(likelihoods(own)) == len(token_ids(own))


def fails_at_the_limit(pair: Pair, outputs: list[TimedOutput]) -> None:
    assert drawn(outputs) == whole(pair)[:LIMIT]
    failed = outputs[-1].output
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, GrammarError)
    assert "grammar (json_schema) is too complex" in str(failed.error)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("strategy", "place", "apart"),
    dealt_diagonally(SOME, list(PLACES), [True, False], one_in=2),
)
def test_an_answer_that_ends_before_is_that_of_plain_decoding(
    pair: Pair, strategy: str, place: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rules(monkeypatch, place)
    monkeypatch.setattr(LMHead, "rows_are_apart", apart)
    for changes in ({"max_new_tokens": LIMIT}, {"stop": stop_at_the_limit(pair)}):
        plain = pair.pipeline([3, 5]).generate(request(pair, "autoregressive", **changes))
        assert len(token_ids(plain)) == LIMIT
        ends_like(pair.pipeline([3, 5]).generate(request(pair, strategy, **changes)), plain)


@pytest.mark.parametrize(
    ("strategy", "place"),
    dealt(
        product(STRATEGIES, PLACES),
        thinnest([*SOME, "specpipe_db", "autoregressive"], list(PLACES)).__contains__,
    ),
)
def test_an_answer_that_comes_there_fails_there(
    pair: Pair, strategy: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rules(monkeypatch, place)
    pipeline = pair.pipeline([3, 5])
    pipeline.start(request(pair, strategy), 0.0)
    pipeline.run()
    fails_at_the_limit(pair, pipeline.outputs)


@pytest.mark.parametrize("strategy", dealt(SOME, "flowspec".__eq__))
def test_sessions_beside_each_other(pair: Pair, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_rules(monkeypatch, "draws")
    plain = pair.pipeline([3, 5]).generate(request(pair, "autoregressive", max_new_tokens=LIMIT))
    pipeline = pair.pipeline([3, 5])
    requests = [
        request(pair, strategy, "length", max_new_tokens=LIMIT),
        request(pair, strategy, "fails"),
        request(pair, strategy, "again", max_new_tokens=LIMIT),
        request(pair, strategy, "free", rules=None, eos=frozenset()),
    ]
    for each in requests:
        pipeline.start(each, 0.0)
    pipeline.run()
    own = {each.session: outputs_of(pipeline, each.session) for each in requests}
    ends_like(own["length"], plain)
    ends_like(own["again"], plain)
    fails_at_the_limit(pair, own["fails"])
    assert token_ids(own["free"]) == expected(pair.prompt(90), GREEDY, TOKENS, "none")
