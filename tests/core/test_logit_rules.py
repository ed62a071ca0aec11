"""The ranges of rules, and what counts as a rule."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flowedge.core.errors import BadRequestError, GrammarError
from flowedge.core.grammar import MAX_GRAMMAR, GrammarSource
from flowedge.core.sampling import LogitRules


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1; it must be from -2 to 2"),
        ({"frequency_penalty": -3.0}, "frequency_penalty is -3.0"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"logit_bias": ((7, 101.0),)}, "logit_bias of token 7 is 101.0; it must be from -100 to 100"),
        ({"logit_bias": ((7, math.inf),)}, "logit_bias of token 7 is inf"),
        ({"logit_bias": tuple((token, 1.0) for token in range(5000))}, "logit_bias has 5000 tokens"),
        ({"logprobs": 21}, "logprobs is 21; it must be from 0 to 20"),
    ],
)
def test_values_out_of_range_are_named(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        LogitRules(**values)
    assert complaint in str(refused.value)


def test_biases_are_of_tokens_of_the_model() -> None:
    LogitRules(logit_bias=((0, 1.0), (96, 1.0))).check_tokens(97)
    with pytest.raises(BadRequestError, match="logit_bias names token 97; the model has tokens 0 to 96"):
        LogitRules(logit_bias=((97, 1.0),)).check_tokens(97)


@pytest.mark.parametrize(
    ("rules", "is_rule", "changes_draws"),
    [
        (LogitRules(), False, False),
        (LogitRules(logprobs=0), True, False),
        (LogitRules(presence_penalty=-0.5), True, True),
        (LogitRules(frequency_penalty=0.5), True, True),
        (LogitRules(repetition_penalty=1.1), True, True),
        (LogitRules(min_p=0.1), True, True),
        (LogitRules(min_tokens=4, ends=(1,)), True, True),
        (LogitRules(min_tokens=4), False, False),
        (LogitRules(logit_bias=((1, 1.0),)), True, True),
        (LogitRules(grammar=GrammarSource("json_object")), True, True),
    ],
)
def test_what_is_a_rule(rules: LogitRules, is_rule: bool, changes_draws: bool) -> None:
    assert bool(rules) == is_rule
    assert rules.changes_draws == changes_draws


def test_a_grammar_has_a_text_of_limited_length() -> None:
    with pytest.raises(GrammarError, match=r"grammar \(regex\) is empty"):
        GrammarSource("regex", " ")
    with pytest.raises(GrammarError, match=r"grammar \(lark\) has 131073 characters"):
        GrammarSource("lark", "x" * (MAX_GRAMMAR + 1))
