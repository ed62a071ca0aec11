"""Messages, tools and grammars on their way to the draft node, and the parts of an answer on the way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flowedge.client import ChatMessage, Client, Grammar, TokenLogprob, ToolCall
from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.core.generate_options import GenerateOptions
from flowedge.v1 import generation_pb2 as pb
from tests.client.fake_node import finished, options_of, serving, started

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
TALK: list[Any] = [
    {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
    ChatMessage("user", "Rain?"),
    {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "audio": None},
    {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "dry"},
]


def parts(request: Any, context: Any) -> Iterator[pb.GenerateEvent]:
    yield pb.GenerateEvent(started=pb.Started(session="s", seed=1, prompt_ids=[1], prompt_text="<s>Rain?"))
    calls = [
        pb.ToolCallDelta(index=0, id="a", name="weather", arguments='{"ci'),
        pb.ToolCallDelta(index=0, arguments='ty": "Bonn"}'),
    ]
    likeliest = [pb.TokenLogprob(token_id=7, logprob=-0.1, text=b"Hm"), pb.TokenLogprob(token_id=8)]
    scored = pb.TokenLogprob(token_id=7, logprob=-0.1, text=b"Hm", likeliest=likeliest)
    yield pb.GenerateEvent(chunk=pb.Chunk(token_ids=[7], reasoning="Hm", logprobs=[scored]))
    yield pb.GenerateEvent(chunk=pb.Chunk(text="I ask.", tool_calls=calls))
    yield finished("tool_calls")


def test_a_conversation_goes_over_the_wire_with_its_tools() -> None:
    with serving(parts) as (node, address), Client(address) as client:
        client.chat(
            TALK,
            tools=[WEATHER],
            tool_choice="weather",
            parallel_tool_calls=False,
            template_values={"enable_thinking": False},
            presence_penalty=0.5,
            logit_bias={3: -100},
            logprobs=0,
            grammar=None,
        ).result()
    (request,) = node.requests
    assert request.parse_answer
    options = options_of(request)
    assert options == GenerateOptions(presence_penalty=0.5, logit_bias={3: -100}, logprobs=0)
    sent = request.conversation
    assert [each.role for each in sent.messages] == ["system", "user", "assistant", "tool"]
    assert sent.messages[0].content == "Be brief."
    assert sent.messages[2].tool_calls == [pb.ToolCall(id="c1", name="weather", arguments='{"city": "Bonn"}')]
    assert (sent.messages[3].tool_call_id, sent.messages[3].name) == ("c1", "weather")
    assert (sent.tool_choice, sent.tool_name, sent.single_tool_call) == ("function", "weather", True)
    assert sent.template_values == '{"enable_thinking": false}'


def test_the_parts_of_an_answer_are_added_up() -> None:
    with serving(parts) as (_, address), Client(address) as client:
        answer = client.chat(TALK, tools=[WEATHER], logprobs=2, echo=True).result()
    assert (answer.text, answer.reasoning, answer.prompt_text) == ("I ask.", "Hm", "<s>Rain?")
    assert answer.tool_calls == [ToolCall("a", "weather", '{"city": "Bonn"}')]
    assert answer.tool_calls[0].values == {"city": "Bonn"}
    likeliest = (TokenLogprob(7, -0.1, b"Hm"), TokenLogprob(8, 0.0, b""))
    assert answer.logprobs == [TokenLogprob(7, -0.1, b"Hm", likeliest)]
    assert answer.finish_reason == "tool_calls"
    assert ChatMessage.from_dict(answer.message.to_dict()) == answer.message


def test_raw_text_is_neither_a_prompt_nor_stripped() -> None:
    with serving(parts) as (node, address), Client(address) as client:
        client.generate(text="\n", echo=True, grammar=Grammar.json_schema({"type": "object"})).result()
        with pytest.raises(BadRequestError, match="either prompt or prompt_ids or text"):
            client.generate("Hi", text="Hi")
    (request,) = node.requests
    options = options_of(request)
    assert (request.text, options.echo) == ("\n", True)
    assert options.grammar == Grammar("json_schema", '{"type": "object"}')


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (pb.Chunk(tool_calls=[pb.ToolCallDelta(index=0, arguments="{}")]), "without an id or a name"),
        (pb.Chunk(tool_calls=[pb.ToolCallDelta(index=1, id="a", name="b")]), "part of tool call 1 after 0"),
        (pb.Chunk(token_ids=[1], logprobs=[pb.TokenLogprob(token_id=2)]), "not those of its tokens"),
        (pb.Chunk(token_ids=[1], logprobs=[pb.TokenLogprob(token_id=1, logprob=0.5)]), "log-probability of"),
    ],
)
def test_parts_that_make_no_sense_are_refused(sent: pb.Chunk, complaint: str) -> None:
    def script(request: Any, context: Any) -> Iterator[pb.GenerateEvent]:
        yield started()
        yield pb.GenerateEvent(chunk=sent)

    with (
        serving(script) as (_, address),
        Client(address) as client,
        pytest.raises(ProtocolError, match=complaint),
    ):
        client.chat([{"role": "user", "content": "Hi"}]).result()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": "Hi"}, "must be a list of messages"),
        ({"messages": [{"role": "robot"}]}, "the role 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text is supported"),
        ({"messages": [{"role": "user", "content": "x", "audio": {"id": "1"}}]}, "'audio', which is not"),
        ({"messages": [{"role": "user", "tool_calls": [CALL]}]}, "only the assistant's may"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "tool_calls is 5"),
        ({"messages": [{"role": "assistant", "tool_calls": CALL}]}, "a list of tool calls"),
        ({"tools": [{"name": "weather"}]}, r"tools\[0\] is"),
        ({"tools": [WEATHER, WEATHER]}, "'weather' twice"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tool_choice": "forecast", "tools": [WEATHER]}, "the name of a tool: weather"),
        ({"template_values": {"x": {1, 2}}}, "template_values is no JSON object"),
        ({"system": "Be brief.", "messages": TALK}, "leave out the option system"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5; it must be from -2 to 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty is nan"),
        ({"logit_bias": {"3": 1}}, "token ids"),
        ({"logit_bias": {3: 101}}, r"logit_bias\[3\] is 101; it must be from -100 to 100"),
        ({"logprobs": 21}, "logprobs is 21; it must be from 0 to 20"),
        ({"grammar": "{}"}, "a Grammar or None"),
    ],
)
def test_a_chat_that_makes_no_sense_is_refused_before_it_is_sent(
    arguments: dict[str, Any], complaint: str
) -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}], **arguments}
    with Client("127.0.0.1:1") as client, pytest.raises(BadRequestError, match=complaint):
        client.chat(**asked)


def test_grammars_that_make_no_sense_are_refused() -> None:
    for make, value in (
        (Grammar.lark, " "),
        (Grammar.regex, 3),
        (Grammar.json_schema, ["x"]),
        (Grammar.json_schema, {"x": float("nan")}),
    ):
        with pytest.raises(BadRequestError):
            make(value)  # type: ignore[arg-type,operator]
    assert Grammar.json_object() == Grammar("json_object")
    assert Grammar.regex("a+") == Grammar("regex", "a+")
    assert Grammar.lark("start: /a/") == Grammar("lark", "start: /a/")
