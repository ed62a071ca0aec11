"""Requests for completions in the client's terms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.answers.body import read_body
from flowedge.gateway.answers.planned import PlannedAnswer
from flowedge.gateway.errors import ApiError
from flowedge.gateway.openai.completions import DEFAULT_TOKENS, CompletionBody, planned_answers


def _planned(**given: Any) -> list[PlannedAnswer]:
    body = read_body(CompletionBody, json.dumps({"model": "m", "prompt": "Once", **given}).encode())
    return planned_answers(body, ApiCaller())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Once", ["Once"]),
        (["Once", "Twice"], ["Once", "Twice"]),
        ([3, 4], [[3, 4]]),
        ([[3, 4], [5]], [[3, 4], [5]]),
        (["Once", [5]], ["Once", [5]]),
    ],
)
def test_prompts_of_all_forms(prompt: Any, prompts: list[Any]) -> None:
    planned = _planned(prompt=prompt, n=2, seed=5, best_of=2)
    assert [each.prompt for each in planned] == [prompt for prompt in prompts for _ in range(2)]
    assert [each.options.seed for each in planned] == [5, 6] * len(prompts)
    assert [each.place for each in planned] == [place for place in range(len(prompts)) for _ in range(2)]


def test_defaults() -> None:
    options = _planned()[0].options
    assert (options.max_new_tokens, options.temperature) == (DEFAULT_TOKENS, None)
    assert options.fit_context
    assert not _planned(max_tokens=DEFAULT_TOKENS)[0].options.fit_context


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt[0]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["x", [1, -1]]}, "prompt[1]"),
        ({"prompt": [["x"]]}, "prompt[0]"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["x"] * 33, "n": 2}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        _planned(**given)
    assert (caught.value.status, caught.value.param) == (400, param)
