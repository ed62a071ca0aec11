"""Ollama's requests in the client's terms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowedge.client import ChatMessage, Grammar, ToolCall
from flowedge.gateway.answers.body import read_body
from flowedge.gateway.answers.planned import ChatPrompt
from flowedge.gateway.errors import ApiError
from flowedge.gateway.ollama.chat_body import ChatBody, GenerateBody

HELLO = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "open", "parameters": {"type": "object"}}}


def _chat(**given: Any) -> ChatBody:
    return read_body(ChatBody, json.dumps({"model": "m", "messages": [HELLO], **given}).encode())


def _generate(**given: Any) -> GenerateBody:
    return read_body(GenerateBody, json.dumps({"model": "m", "prompt": "Once", **given}).encode())


def test_the_defaults_are_the_models_own() -> None:
    body = _chat()
    assert not {"temperature", "top_p", "top_k"} & body.answer_arguments().keys()
    assert body.stream
    assert "max_new_tokens" not in _chat(options={"num_predict": -1}).answer_arguments()


def test_options_become_the_clients_options() -> None:
    body = _chat(
        options={
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 3,
            "seed": 7,
            "num_predict": 9,
            "stop": ["a", "b"],
            "presence_penalty": 1,
            "frequency_penalty": 0.5,
            "num_ctx": 4096,
            "num_gpu": 1,
            "mirostat": 0,
            "repeat_penalty": 1.1,
            "min_p": 0.05,
            "typical_p": 1,
        },
        keep_alive="5m",
        format="json",
        logprobs=True,
        top_logprobs=2,
    )
    assert body.options.seed == 7
    assert body.answer_arguments() == {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "max_new_tokens": 9,
        "stop": ("a", "b"),
        "presence_penalty": 1.0,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
        "min_p": 0.05,
        "grammar": Grammar.json_object(),
        "logprobs": 2,
    }


def test_a_conversation_with_tools() -> None:
    call = {"function": {"name": "open", "arguments": {"x": 1}}}
    prompt = _chat(
        messages=[
            {"role": "system", "content": "Be brief."},
            HELLO,
            {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call, call]},
            {"role": "tool", "content": "one", "tool_name": "open"},
            {"role": "tool", "content": "two"},
        ],
        tools=[TOOL],
        think="low",
    ).prompt()
    first, second = (ToolCall(f"call_2_{number}", "open", '{"x": 1}') for number in (0, 1))
    assert list(prompt.messages) == [
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "Hello"),
        ChatMessage("assistant", "", "Hm.", (first, second)),
        ChatMessage("tool", "one", tool_call_id="call_2_0", name="open"),
        ChatMessage("tool", "two", tool_call_id="call_2_1", name="open"),
    ]
    assert [tool["function"]["name"] for tool in prompt.tool_use.tools] == ["open"]
    assert prompt.template_values == {"enable_thinking": True, "reasoning_effort": "low"}


def test_a_prompt_with_its_system_message() -> None:
    prompt = _generate(system="Be brief.", think=False).full_prompt()
    assert isinstance(prompt, ChatPrompt)
    assert list(prompt.messages) == [ChatMessage("system", "Be brief."), ChatMessage("user", "Once")]
    assert prompt.template_values == {"enable_thinking": False}
    assert _generate(raw=True).full_prompt() == "Once"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"heat": 2}}, "options.heat"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"format": "xml"}, "format"),
        ({"think": "much"}, "think"),
        ({"messages": [{**HELLO, "images": ["AAAA"]}]}, "messages[0].images"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        _chat(**given).prompt()
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("name", ["suffix", "template", "context", "images"])
def test_what_generate_cannot_do_is_refused_by_name(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        _generate(**{name: ["x"] if name in ("context", "images") else "x"})
    assert caught.value.param == name


@pytest.mark.parametrize("option", ["temperature", "num_ctx"])
def test_an_option_that_is_not_finite_is_refused(option: str) -> None:
    text = f'{{"model": "m", "messages": [], "options": {{"{option}": 1e999}}}}'
    with pytest.raises(ApiError, match=f"options.{option} is not a finite number") as caught:
        read_body(ChatBody, text.encode())
    assert (caught.value.status, caught.value.param) == (400, f"options.{option}")
