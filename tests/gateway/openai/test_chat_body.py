"""Requests for chat completions in the client's terms."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.completion_create_params import CompletionCreateParamsStreaming as LegacyParams
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from flowedge.client import ChatMessage, Grammar, ToolCall
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.answers.body import RequestBody, read_body
from flowedge.gateway.answers.planned import ChatPrompt
from flowedge.gateway.errors import ApiError
from flowedge.gateway.openai.chat import planned_answers
from flowedge.gateway.openai.chat_body import ChatCompletionBody
from flowedge.gateway.openai.completions import CompletionBody
from flowedge.gateway.openai.responses_body import ResponseBody

HELLO = {"role": "user", "content": "Hello"}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}
    for name in ("open", "close")
]
SCHEMA = {"type": "object", "properties": {"colour": {"type": "string"}}}


def read(**given: Any) -> ChatCompletionBody:
    content = {"model": "m", "messages": [HELLO], **given}
    return read_body(ChatCompletionBody, json.dumps(content).encode(), [])


def refused(**given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        planned_answers(read(**given), ApiCaller())
    return caught.value


def prompt_of(**given: Any) -> ChatPrompt:
    prompt = planned_answers(read(**given), ApiCaller())[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


@pytest.mark.parametrize(
    ("parameters", "body"),
    [
        (CompletionCreateParamsStreaming, ChatCompletionBody),
        (LegacyParams, CompletionBody),
        (ResponseCreateParamsStreaming, ResponseBody),
    ],
)
def test_every_parameter_of_the_official_client_is_known(parameters: type, body: type[RequestBody]) -> None:
    known = {*body.model_fields, *body.ignored, *body.without_effect, *body.unsupported}
    assert set(get_type_hints(parameters)) - known == set()


def test_parameters_become_the_clients_options() -> None:
    body = read(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        seed=-1,
        n=2,
        stop="end",
        max_completion_tokens=9,
        max_tokens=9,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"5": -100},
        logprobs=True,
        top_logprobs=3,
        ignore_eos=True,
        user="somebody",
    )
    caller = ApiCaller("key", "batch", tenant="digest")
    first, second = (each.options for each in planned_answers(body, caller))
    assert (first.temperature, first.top_p, first.top_k, first.stop) == (0.5, 0.9, 7, ("end",))
    assert (first.presence_penalty, first.frequency_penalty, first.logit_bias) == (1.0, -1.0, {5: -100.0})
    assert (first.max_new_tokens, first.logprobs, first.ignore_eos, first.priority) == (9, 3, True, "batch")
    assert (first.seed, second.seed) == (2**63 - 1, 0)
    assert first.tenant == second.tenant == "digest", "of the key, whoever the request names as its user"


@pytest.mark.parametrize("given", [{"top_p": 0}, {"temperature": 1e-8}, {"temperature": 0, "min_p": 0.5}])
def test_ways_to_ask_for_the_likeliest_token(given: dict[str, Any]) -> None:
    (planned,) = planned_answers(read(**given), ApiCaller())
    assert (planned.options.temperature, planned.options.top_p) == (0.0, 1.0)


def test_rules_by_the_names_of_other_servers() -> None:
    (planned,) = planned_answers(read(repetition_penalty=1.2, min_p=0.1, min_tokens=4), ApiCaller())
    options = planned.options
    assert (options.repetition_penalty, options.min_p, options.min_tokens) == (1.2, 0.1, 4)


def test_without_parameters_answers_are_drawn_as_the_model_says() -> None:
    (planned,) = planned_answers(read(), ApiCaller())
    options = planned.options
    assert (options.temperature, options.top_p, options.top_k, options.seed) == (None,) * 4
    assert (options.logprobs, options.grammar) == (None, None)
    assert (options.max_new_tokens, options.fit_context) == (2**31 - 1, True)  # to the end of the context


def test_messages_of_all_roles() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "open", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "name": "Ann",
            "content": [{"type": "text", "text": "He"}, {"type": "text", "text": "y"}],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [call],
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    assert list(prompt_of(messages=messages, tools=TOOLS).messages) == [
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "Hey"),
        ChatMessage("assistant", "", "Hm.", (ToolCall("c1", "open", '{"x": 1}'),)),
        ChatMessage("tool", "done", tool_call_id="c1", name="open"),
    ]


@pytest.mark.parametrize(
    ("choice", "expected", "offered"),
    [
        (None, "auto", ["open", "close"]),
        ("none", "none", ["open", "close"]),
        ("required", "required", ["open", "close"]),
        ({"type": "function", "function": {"name": "close"}}, "close", ["open", "close"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "close"}}],
                },
            },
            "required",
            ["close"],
        ),
    ],
)
def test_choices_of_tools(choice: Any, expected: str, offered: list[str]) -> None:
    use = prompt_of(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False).tool_use
    assert (use.choice, use.parallel) == (expected, False)
    assert [tool["function"]["name"] for tool in use.tools] == offered


def test_formats_become_grammars() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "paint", "schema": SCHEMA, "strict": True}}
    for form, grammar in (
        ({"type": "text"}, None),
        ({"type": "json_object"}, Grammar.json_object()),
        (schema, Grammar.json_schema({**SCHEMA, "additionalProperties": False})),
    ):
        assert planned_answers(read(response_format=form), ApiCaller())[0].options.grammar == grammar


def test_values_of_the_template() -> None:
    given = prompt_of(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
    assert given.template_values == {"enable_thinking": False, "reasoning_effort": "low"}
    assert prompt_of(reasoning_effort="none").template_values["enable_thinking"] is False


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [HELLO, {"role": "assistant", "audio": {"id": "a"}}]}, "messages[1].audio"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"temperature": 2.5}, "temperature"),
        ({"n": 0}, "n"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"logit_bias": {str(token): "x" for token in range(10_000)}}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "run"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": TOOLS + TOOLS}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"stop_token_ids": [5]}, "stop_token_ids"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    error = refused(**given)
    assert (error.status, error.param) == (400, param)


def test_values_that_mean_off_are_accepted() -> None:
    read(
        n=1,
        logprobs=False,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        store=False,
        metadata={},
        service_tier="auto",
        modalities=["text"],
        parallel_tool_calls=True,
        functions=[],
        function_call="none",
        prediction={"type": "content", "content": "x"},
        audio=None,
        repetition_penalty=1.0,
        min_p=0,
        min_tokens=0,
        ignore_eos=False,
        use_beam_search=False,
        length_penalty=1.0,
        stop_token_ids=[],
        skip_special_tokens=True,
        truncate_prompt_tokens=None,
        bad_words=[],
        verbosity="medium",
        prompt_cache_key="k",
        safety_identifier="s",
    )


def test_as_many_biases_as_a_draft_node_takes() -> None:
    assert len(read(logit_bias={str(token): 1 for token in range(1024)}).logit_bias) == 1024
    error = refused(logit_bias={str(token): 1 for token in range(1025)})
    assert error.message.endswith(": it has 1025 tokens; at most 1024 are taken")
    assert len(error.message) < 200


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ('"temperature": 1e999', "temperature"),
        ('"top_p": -1e999', "top_p"),
        ('"user": [[1, 2.5], {"a": 1e999}]', "user[1].a"),
        (
            '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 1e400}}}]',
            "tools[0].function.parameters.maximum",
        ),
    ],
)
def test_a_number_that_is_too_large_for_json_is_named(given: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_body(ChatCompletionBody, f'{{"model": "m", "messages": [], {given}}}'.encode())
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message == f"{param} is not a finite number; give one below 1.8e+308"
