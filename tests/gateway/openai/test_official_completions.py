"""OpenAI's own client asks for completions and responses."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI

from tests.gateway.openai.test_official_chat import CALL_TOKENS, COLOURS, PAINT, Wall

STORY = "This is a story about the sea, as my"
PAINT_TOOL: Any = {"type": "function", "strict": True, **PAINT["function"]}


def test_completions_of_several_prompts(official: OpenAI) -> None:
    asked: Any = {"model": "bundled", "max_tokens": 4}
    prompts: Any = [STORY, "def add("]
    alone = [
        official.completions.create(**asked, prompt=prompt, seed=seed).choices[0].text
        for prompt in prompts
        for seed in (3, 4)
    ]
    together = official.completions.create(**asked, prompt=prompts, seed=3, n=2)
    assert together.object == "text_completion"
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in together.choices] == alone
    echoed = official.completions.create(**asked, prompt=prompts, seed=3, n=2, echo=True)
    expected = [prompt + text for prompt, text in zip(prompts * 2, alone[::2] + alone[1::2], strict=True)]
    assert sorted(choice.text for choice in echoed.choices) == sorted(expected)
    texts = [""] * 4
    for chunk in official.completions.create(**asked, prompt=prompts, seed=3, n=2, echo=True, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in echoed.choices]


def test_a_prompt_of_token_ids(official: OpenAI) -> None:
    asked: Any = {"model": "bundled", "max_tokens": 6, "temperature": 0}
    one = official.completions.create(**asked, prompt=[5, 90, 200])
    both = official.completions.create(**asked, prompt=[[5, 90, 200], [7]])
    assert both.choices[0].text == one.choices[0].text
    assert one.usage is not None
    assert one.usage.prompt_tokens == 3


def test_log_probabilities_in_the_old_shape(official: OpenAI) -> None:
    asked: Any = {"model": "bundled", "prompt": STORY, "max_tokens": 6, "temperature": 0, "logprobs": 2}
    choice = official.completions.create(**asked).choices[0]
    listed = choice.logprobs
    assert listed is not None
    assert "".join(listed.tokens or ()) == choice.text
    assert len(listed.token_logprobs or ()) == len(listed.text_offset or ()) == 6
    assert all(len(likeliest) == 2 for likeliest in listed.top_logprobs or ())
    offsets = [
        offset
        for chunk in official.completions.create(**asked, stream=True)
        if chunk.choices[0].logprobs is not None
        for offset in chunk.choices[0].logprobs.text_offset or ()
    ]
    assert offsets == listed.text_offset


def test_a_response(official: OpenAI) -> None:
    response = official.responses.create(
        model="bundled", input="Tell me about bees.", max_output_tokens=12, temperature=0
    )
    assert response.id.startswith("resp_")
    assert (response.status, response.model) == ("incomplete", "bundled")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage is not None
    assert response.usage.output_tokens == 12
    text = ""
    for event in official.responses.create(
        model="bundled", input="Tell me about bees.", max_output_tokens=12, temperature=0, stream=True
    ):
        if event.type == "response.output_text.delta":
            text += event.delta
    assert event.type == "response.incomplete"
    assert text == response.output_text


def test_a_response_by_a_schema(official: OpenAI) -> None:
    response = official.responses.parse(
        model="bundled", input="Paint.", text_format=Wall, max_output_tokens=60
    )
    assert isinstance(response.output_parsed, Wall)
    with official.responses.stream(
        model="bundled", input="Paint.", text_format=Wall, max_output_tokens=60
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, Wall)


def test_a_response_that_calls_a_function(official: OpenAI) -> None:
    asked: Any = {
        "model": "bundled",
        "tools": [PAINT_TOOL],
        "parallel_tool_calls": False,
        "max_output_tokens": CALL_TOKENS,
    }
    question: Any = {"role": "user", "content": "Paint it."}
    response = official.responses.create(**asked, input=[question], tool_choice="required")
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert call.name == "paint"
    assert json.loads(call.arguments)["colour"] in COLOURS
    items: Any = [
        question,
        *response.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "It is done."},
    ]
    after = official.responses.create(**{**asked, "max_output_tokens": 8}, input=items, tool_choice="none")
    assert after.output_text
