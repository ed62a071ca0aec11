"""Answers that go on behind tokens that were put out: real weights, text, stop strings and rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.core.request import Request, Tokens
from flowedge.core.sampling import LogitRules, SamplingParams
from tests.equality.conftest import Pair, finished, request, text_of, token_ids
from tests.equality.test_rules import JSON_SCHEMA
from tests.support.breadth import dealt_thinly

pytestmark = pytest.mark.slow
SAMPLINGS = {"greedy": SamplingParams(), "T1-p0.9": SamplingParams(temperature=1.0, top_p=0.9, seed=13)}
RULES = {
    "none": None,
    "logprobs": LogitRules(logprobs=2),
    "penalties": LogitRules(presence_penalty=0.9, frequency_penalty=0.6),
    "schema": LogitRules(grammar=JSON_SCHEMA),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("strategy", "sampling", "rules"),
    dealt_thinly(("auto", "flowspec", "specpipe", "autoregressive"), tuple(SAMPLINGS), tuple(RULES)),
)
def test_the_rest_is_the_same_behind_any_token(pair: Pair, strategy: str, sampling: str, rules: str) -> None:
    """On other stages than before, as when a device is lost; text that was held back comes whole."""
    asked = replace(request(pair.prompt(40), SAMPLINGS[sampling], 20, strategy), rules=RULES[rules])
    whole = pair.pipeline([2, 2, 4]).generate(asked)
    tokens = token_ids(whole)
    for count in range(0, len(tokens), 4):
        rest = pair.pipeline([3, 5]).generate(asked.behind(tokens[:count]))
        assert token_ids(rest) == tokens[count:]
        assert finished(rest).reason == finished(whole).reason
        likelihoods = [
            [e.token for o in each if isinstance(o.output, Tokens) for e in o.output.likelihoods]
            for each in (whole, rest)
        ]
        assert likelihoods[0][count:] == likelihoods[1]


def test_a_stop_string_is_found_across_the_break(pair: Pair) -> None:
    base = request(pair.prompt(40), SamplingParams(), 16, "auto")
    text = text_of(pair.pipeline([8]).generate(base))
    asked = replace(base, stop=(text[len(text) // 2 : len(text) // 2 + 6],))
    whole = pair.pipeline([8]).generate(asked)
    assert finished(whole).reason == "stop"
    tokens = token_ids(whole)
    at_breaks = {
        text_of(whole)[: len(text_of(whole)) - len(text_of(rest))] for rest in rests(pair, asked, tokens)
    }
    assert len(at_breaks) > 3


def rests(pair: Pair, asked: Request, tokens: tuple[int, ...]):
    whole = text_of(pair.pipeline([8]).generate(asked))
    for count in range(len(tokens)):
        rest = pair.pipeline([8]).generate(asked.behind(tokens[:count]))
        assert (token_ids(rest), finished(rest).reason) == (tokens[count:], "stop")
        assert whole.endswith(text_of(rest))
        yield rest


def test_an_answer_that_has_ended_does_not_go_on(pair: Pair) -> None:
    asked = request(pair.prompt(40), SamplingParams(), 4, "auto")
    tokens = token_ids(pair.pipeline([8]).generate(asked))
    with pytest.raises(BadRequestError, match="has ended with its 4 tokens: length"):
        pair.pipeline([8]).generate(asked.behind(tokens))
