"""Tools, raw text, the echo of the prompt and other parts of requests, at a real draft node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowedge.client import ChatMessage, Client, Grammar, ToolCall
from flowedge.core.errors import BadRequestError, CapacityError, FlowEdgeError, GrammarError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.text.tokenizer import encode_messages, render_messages
from flowedge.v1 import generation_pb2 as pb

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}},
}


def test_raw_text_has_no_template_around_it(cluster4: str) -> None:
    tokenizer = load_tokenizer(Checkpoint.open("bundled"))
    with Client(cluster4) as client:
        answer = client.generate(text="def add(a, b):", echo=True, max_new_tokens=4).result()
        assert list(answer.prompt_ids) == tokenizer("def add(a, b):")["input_ids"]
        assert answer.prompt_text == "def add(a, b):"
        again = client.generate(prompt_ids=answer.prompt_ids, echo=True, max_new_tokens=4).result()
    assert again.token_ids == answer.token_ids
    assert again.prompt_text == tokenizer.decode(answer.prompt_ids)


def test_an_answer_without_calls_is_its_text(cluster4: str) -> None:
    talk = [ChatMessage("user", "Write a function that adds two numbers.")]
    with Client(cluster4) as client:
        plain = client.chat(talk, parse=False, max_new_tokens=60).result()
        parsed = client.chat(talk, max_new_tokens=60).result()
        cut = client.chat(talk, max_new_tokens=60, stop=[plain.text[10:14]]).result()
    assert parsed.text == plain.text == parsed.message.content
    assert (parsed.reasoning, parsed.tool_calls) == ("", [])
    assert (cut.text, cut.finish_reason) == (plain.text[: plain.text.index(plain.text[10:14])], "stop")


def test_the_chat_template_is_applied_to_all_messages(cluster4: str) -> None:
    talk = [("user", "Name a river."), ("assistant", "The Elbe."), ("user", "Another.")]
    with Client(cluster4) as client:
        answer = client.chat([ChatMessage(*each) for each in talk], max_new_tokens=2).result()
    messages = [{"role": role, "content": content} for role, content in talk]
    assert list(answer.prompt_ids) == encode_messages(load_tokenizer(Checkpoint.open("bundled")), messages)


def test_a_template_that_knows_them_is_given_systems_tools_calls_and_results(
    cluster4: str,
) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Bonn"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "dry"},
    ]
    talk = [
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "Rain?"),
        ChatMessage("assistant", tool_calls=[ToolCall("c1", "weather", '{"city": "Bonn"}')]),
        ChatMessage("tool", "dry", tool_call_id="c1"),
    ]
    with Client(cluster4) as client:
        answer = client.chat(talk, tools=[WEATHER], echo=True, max_new_tokens=4).result()
    rendered = render_messages(load_tokenizer(Checkpoint.open("bundled")), messages, tools=[WEATHER])
    assert answer.prompt_text == rendered
    assert all(part in rendered for part in ("Be brief.", '"city": "Bonn"', "<tool_response>\ndry"))


def test_an_answer_continues_the_last_message_of_the_assistant(cluster4: str) -> None:
    talk = [ChatMessage("user", "Tell me about bees.")]
    with Client(cluster4) as client:
        chunks = [chunk.text for chunk in client.chat(talk, max_new_tokens=30, temperature=0)]
        half = len(chunks) // 2
        begun = ChatMessage("assistant", "".join(chunks[:half]))
        rest = client.chat([*talk, begun], max_new_tokens=30, temperature=0).result()
    assert len(chunks) > 3
    assert rest.text.startswith("".join(chunks[half:]))


def test_a_request_of_another_version_is_refused(cluster4: str) -> None:
    request = pb.GenerateRequest(prompt="Hi")
    request.MergeFromString(b"\x20\x09")  # max_new_tokens, when it was a field
    with (
        Client(cluster4) as client,
        pytest.raises(FlowEdgeError, match="install the same version of FlowEdge on both"),
    ):
        client._start(request, 60, None).result()  # noqa: SLF001 (the client itself would not send it)


def spoken(*turns: tuple[str, str]) -> dict[str, list[pb.ChatMessage]]:
    return {"messages": [pb.ChatMessage(role=role, content=content) for role, content in turns]}


RAIN = '{"type": "function", "function": {"name": "rain", "parameters": {}}}'
QUESTION = ("user", "Rain?")
DEEP = "[" * 64 + "]" * 64


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (spoken(), "neither with a message of the user"),
        (spoken(("assistant", "Yes.")), "neither with a message of the user"),
        (spoken(QUESTION, *[("assistant", "Yes.")] * 2), "neither with a message of the user"),
        (spoken(("robot", "x"), QUESTION), "the role 'robot'"),
        (spoken(*[QUESTION] * 1025), "1025 messages"),
        (spoken(("user", "x" * 200_000), ("user", "x" * 100_000)), "300000 bytes"),
        ({"tools": ["{"]}, "a tool: not JSON"),
        ({"tools": ["[]"]}, "is no JSON object"),
        ({"tools": ['{"type": "function"}']}, "it must be"),
        ({"tools": ['{"type": "function", "function": {"name": "a b"}}']}, "a tool's name is 'a b'"),
        ({"tools": ["{}"] * 257}, "257 tools"),
        ({"tools": [RAIN, RAIN]}, "two tools are named rain"),
        ({"tools": [RAIN.replace("{}", '{"properties": []}')]}, "rain are no JSON schema"),
        ({"tools": [RAIN.replace("{}", '{"required": 1}')]}, "rain are no JSON schema"),
        ({"tools": [RAIN.replace("{}", f'{{"x": {DEEP}}}')]}, "a tool: objects and lists are nested deeper"),
        ({"template_values": f'{{"x": {DEEP}}}'}, "template_values: objects and lists are nested deeper"),
        ({"tool_choice": "maybe"}, "tool_choice is 'maybe'"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tool_choice": "function", "tool_name": "x"}, "names 'x', which is"),
        ({"template_values": "[]"}, "is no JSON object"),
        ({"template_values": '{"messages": []}'}, "'messages', which comes from the request"),
        ({"messages": [pb.ChatMessage(role="user", reasoning="x")]}, "only assistants' may"),
        (
            {
                "messages": [
                    pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(name="x", arguments="[")]),
                    pb.ChatMessage(role="user"),
                ]
            },
            "the arguments of a call of x: not JSON",
        ),
    ],
)
def test_conversations_that_make_no_sense_are_refused(
    cluster4: str, changes: dict[str, Any], complaint: str
) -> None:
    conversation = pb.Conversation(**{"messages": [pb.ChatMessage(role="user", content="Hi")], **changes})
    request = pb.GenerateRequest(conversation=conversation, options=json.dumps({"max_new_tokens": 1}))
    with Client(cluster4) as client, pytest.raises(BadRequestError, match=complaint):
        client._start(request, 60, None).result()  # noqa: SLF001 (the client itself would refuse it)


def test_tools_count_to_the_size_of_the_prompt(cluster4: str) -> None:
    tool = {"type": "function", "function": {"name": "x", "description": "x" * 300_000}}
    with Client(cluster4) as client, pytest.raises(CapacityError, match="bytes"):
        client.chat([ChatMessage("user", "Hi")], tools=[tool]).result()


def test_an_error_of_a_grammar_keeps_its_class_over_the_wire(cluster4: str) -> None:
    with Client(cluster4) as client:
        for grammar in (Grammar.regex("(a"), Grammar.json_schema({"type": "colour"}), Grammar("lark", " ")):
            with pytest.raises(GrammarError, match=r"^grammar \("):
                client.generate("Hi", grammar=grammar, max_new_tokens=1).result()


CITY = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {**CITY, "additionalProperties": False}},
    },
    {"type": "function", "function": {"name": "population", "parameters": CITY}},
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_call_that_is_required_comes_in_the_form_of_the_tool(cluster4: str, temperature: float) -> None:
    with Client(cluster4) as client:
        answer = client.chat(
            [ChatMessage("user", "Rain?")],
            tools=TOOLS,
            tool_choice="weather",
            temperature=temperature,
            seed=1,
            max_new_tokens=200,
        )
        deltas = [delta for chunk in answer for delta in chunk.tool_calls]
        (call,) = answer.tool_calls
        assert (call.name, answer.finish_reason, answer.text) == ("weather", "tool_calls", "")
        assert call.values["city"] in ("Bonn", "Rome")
        assert [delta.name for delta in deltas if delta.name] == ["weather"]
        talk = [
            ChatMessage("user", "Rain?"),
            answer.message,
            ChatMessage("tool", "dry", tool_call_id=call.id),
        ]
        after = client.chat(talk, tools=TOOLS, max_new_tokens=8).result()
    assert after.prompt_ids[: len(answer.prompt_ids)] == answer.prompt_ids
    assert after.statistics["counters"]["reused_rows"] >= len(answer.prompt_ids)


def test_a_call_that_is_cut_off_is_left_out(cluster4: str) -> None:
    with Client(cluster4) as client:
        answer = client.chat(
            [ChatMessage("user", "Rain?")], tools=TOOLS, tool_choice="required", max_new_tokens=12
        ).result()
    assert (answer.tool_calls, answer.text, answer.finish_reason) == ([], "", "length")
