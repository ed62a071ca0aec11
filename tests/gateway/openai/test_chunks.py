"""Chunks of streams are what the official client reads."""

from __future__ import annotations

import json
from math import nan

from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from flowedge.client import Chunk, TokenLogprob, ToolCallDelta
from flowedge.gateway.answers.logprobs import LEAST_LOGPROB, LegacyLogprobs, chat_logprobs
from flowedge.gateway.openai.chunks import AnswerHead, ChunkWriter, delta_of

HEAD = AnswerHead("chatcmpl-1", "chat.completion", 'a "name" ü', "fp_1", 17)


def test_a_chunk_is_what_the_official_client_reads() -> None:
    writer = ChunkWriter(HEAD, "chat.completion.chunk", includes_usage=True)
    delta = delta_of(Chunk((1,), 'x "y"\n', reasoning="why"))
    text = writer.choice({"index": 1, "delta": delta, "logprobs": None, "finish_reason": None})
    assert "\n" not in text
    chunk = ChatCompletionChunk.model_validate_json(text)
    assert (chunk.id, chunk.model, chunk.created, chunk.usage) == ("chatcmpl-1", 'a "name" ü', 17, None)
    assert chunk.choices[0].delta.content == 'x "y"\n'
    assert chunk.choices[0].delta.model_extra == {"reasoning_content": "why"}
    assert json.loads(text)["usage"] is None


def test_the_last_chunk_has_the_usage_and_no_choice() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    text = ChunkWriter(HEAD, "chat.completion.chunk", includes_usage=True).usage(usage)
    chunk = ChatCompletionChunk.model_validate_json(text)
    assert chunk.choices == []
    assert chunk.usage is not None
    assert chunk.usage.total_tokens == 3


def test_without_usage_no_chunk_names_it() -> None:
    text = ChunkWriter(HEAD, "text_completion", includes_usage=False).choice(
        {"index": 0, "text": "x", "logprobs": None, "finish_reason": "stop"}
    )
    assert "usage" not in json.loads(text)
    assert Completion.model_validate_json(text).object == "text_completion"


def test_only_the_first_part_of_a_call_has_its_name() -> None:
    deltas = (ToolCallDelta(0, "call_1", "open", '{"x"'), ToolCallDelta(0, arguments=": 1}"))
    assert delta_of(Chunk((1, 2), "", tool_calls=deltas)) == {
        "tool_calls": [
            {
                "index": 0,
                "id": "call_1",
                "type": "function",
                "function": {"name": "open", "arguments": '{"x"'},
            },
            {"index": 0, "function": {"arguments": ": 1}"}},
        ]
    }


def test_a_chunk_without_text_adds_nothing() -> None:
    assert delta_of(Chunk((1,), "")) == {}


def test_log_probabilities_in_both_shapes() -> None:
    half = TokenLogprob(7, -0.5, "é".encode()[:1])
    word = TokenLogprob(8, float("-inf"), b"word", (half, TokenLogprob(8, -3.0, b"word")))
    assert chat_logprobs([word]) == [
        {
            "token": "word",
            "logprob": LEAST_LOGPROB,
            "bytes": list(b"word"),
            "top_logprobs": [
                {"token": "\ufffd", "logprob": -0.5, "bytes": [0xC3]},
                {"token": "word", "logprob": -3.0, "bytes": list(b"word")},
            ],
        }
    ]
    assert LegacyLogprobs().listed([word, half]) == {
        "tokens": ["word", "\ufffd"],
        "token_logprobs": [LEAST_LOGPROB, -0.5],
        "top_logprobs": [{"\ufffd": -0.5, "word": -3.0}, {}],
        "text_offset": [0, 4],
    }


def test_the_places_of_tokens_in_a_text() -> None:
    """Of halves of a character, and of special tokens: those that were written in the prompt, and others."""
    tokens = [
        TokenLogprob(0, nan, b"<s>", special=True),
        TokenLogprob(5, -1.0, b" on"),
        TokenLogprob(2, -1.0, b"<|user|>", special=True),
        *(TokenLogprob(6, -1.0, bytes([half])) for half in "é".encode()),
        TokenLogprob(1, -1.0, b"</s>", special=True),
        TokenLogprob(8, -1.0, b"x"),
    ]
    whole = LegacyLogprobs("on<|user|>\u00e9").listed(tokens)
    assert whole["text_offset"] == [0, 0, 2, 10, 10, 11, 11]
    assert (whole["token_logprobs"][0], whole["top_logprobs"][0]) == (None, None)
    parts = LegacyLogprobs("on<|user|>\u00e9")
    assert [place for each in tokens for place in parts.listed([each])["text_offset"]] == whole["text_offset"]
