"""Output items and the events that tell of them, in the order in which the official client needs them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from flowedge.client import Chunk, TokenLogprob, ToolCallDelta
from flowedge.gateway.answers.body import read_body
from flowedge.gateway.answers.usage import AnswerUsage, RequestUsage
from flowedge.gateway.errors import ApiError
from flowedge.gateway.openai.responses_body import ResponseBody
from flowedge.gateway.openai.responses_object import ResponseDocument
from flowedge.gateway.streams import ServerEvent

CHUNKS = [
    Chunk((1,), "", reasoning="Let me "),
    Chunk((2,), "", reasoning="see."),
    Chunk((3,), "The ", logprobs=(TokenLogprob(3, -0.5, b"The "),)),
    Chunk((4,), "door."),
    Chunk(
        (5, 6), "", tool_calls=(ToolCallDelta(0, "c1", "open", '{"x"'), ToolCallDelta(0, arguments=": 1}"))
    ),
    Chunk((7,), "", tool_calls=(ToolCallDelta(1, "c2", "shut", "{}"),)),
]


def _document() -> ResponseDocument:
    body = {"model": "m", "input": "Hi", "tools": [{"type": "function", "name": "open"}]}
    return ResponseDocument(read_body(ResponseBody, json.dumps(body).encode()), "m")


def _stream(document: ResponseDocument, chunks: Sequence[Chunk], reason: str) -> list[ServerEvent]:
    events = [document.state_event("created"), document.state_event("in_progress")]
    for chunk in chunks:
        events += map(document.numbered, document.output.add(chunk))
    events += map(document.numbered, document.output.finish(document.end(reason)))
    return [*events, document.state_event(document.status, RequestUsage([AnswerUsage(0, 4, 7, 2)], "p"))]


def _parsed(events: Sequence[ServerEvent]) -> list[Any]:
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    return [adapter.validate_json(event.data) for event in events]


def test_events_come_in_the_order_of_the_api() -> None:
    events = _stream(_document(), CHUNKS, "tool_calls")
    assert [json.loads(event.data)["sequence_number"] for event in events] == list(range(len(events)))
    item = ["output_item.added", "content_part.added"]
    assert [(event.event or "").removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        *item,
        *["reasoning_text.delta"] * 2,
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        *item,
        *["output_text.delta"] * 2,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        *["function_call_arguments.delta"] * 2,
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_the_official_client_puts_the_events_together() -> None:
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    for event in _parsed(_stream(_document(), CHUNKS, "tool_calls")):
        state.handle_event(event)
    response = state._completed_response  # noqa: SLF001
    assert response is not None
    reasoning, message, first, second = response.output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.content or []] == ["Let me see."]
    assert message.type == "message"
    assert response.output_text == "The door."
    assert first.type == second.type == "function_call"
    assert [(call.call_id, call.name, call.arguments) for call in (first, second)] == [
        ("c1", "open", '{"x": 1}'),
        ("c2", "shut", "{}"),
    ]
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (4, 7)
    assert response.usage.output_tokens_details.reasoning_tokens == 2


def test_an_answer_that_reached_its_limit_is_incomplete() -> None:
    last = _parsed(_stream(_document(), CHUNKS[:3], "length"))[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in last.response.output] == ["completed", "incomplete"]


def test_an_empty_answer_is_an_empty_message() -> None:
    document = _document()
    _stream(document, [], "eos")
    response = Response.model_validate(document.content())
    assert (response.output_text, response.status, len(response.output)) == ("", "completed", 1)


def test_an_error_in_the_stream_fails_the_response() -> None:
    document = _document()
    events = [document.state_event("created"), *map(document.numbered, document.output.add(CHUNKS[0]))]
    failed = _parsed([document.failed_event(ApiError(503, "device v1 is lost"))])[0]
    assert failed.type == "response.failed"
    assert failed.sequence_number == len(events)
    assert (failed.response.status, failed.response.error.code) == ("failed", "server_error")
    assert failed.response.error.message == "device v1 is lost"
