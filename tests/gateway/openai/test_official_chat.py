"""OpenAI's own client asks for chat completions: plain, streamed, with tools, by a schema."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError, OpenAI
from pydantic import BaseModel

from tests.gateway.application import GatewayHere

HELLO: Any = [{"role": "user", "content": "Write a function that adds two numbers."}]
COLOURS = ("red", "green", "blue")
PAINT: Any = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paint it.",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": list(COLOURS)}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}
CONTEXT = 2048  # tokens of the bundled model
CALL_TOKENS = 120  # enough for a call, which is longer than its JSON


class Wall(BaseModel):
    colour: Literal["red", "green", "blue"]
    painted: bool


def test_an_answer_and_its_usage(official: OpenAI) -> None:
    answer = official.chat.completions.create(model="bundled", messages=HELLO, max_tokens=12, temperature=0)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "bundled")
    assert answer.system_fingerprint is not None
    (choice,) = answer.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.message.content
    usage = answer.usage
    assert usage is not None
    assert usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12
    details = usage.prompt_tokens_details
    assert details is not None
    extension = (usage.model_extra or {})["flowedge"]
    assert details.cached_tokens == extension["reused_rows"]
    assert extension["tokens_per_segment"] >= 1
    assert extension["ttft_s"] > 0


def test_a_stream_is_the_same_answer_in_parts(official: OpenAI) -> None:
    asked: Any = {"model": "bundled", "messages": HELLO, "max_tokens": 12, "seed": 7}
    whole = official.chat.completions.create(**asked)
    with_usage = {"include_usage": True}
    *chunks, last = official.chat.completions.create(**asked, stream=True, stream_options=with_usage)
    first, *others = [chunk.choices[0] for chunk in chunks]
    assert (first.delta.role, first.delta.content) == ("assistant", "")
    assert all(choice.delta.role is None for choice in others)
    assert "".join(choice.delta.content or "" for choice in others) == whole.choices[0].message.content
    assert [choice.finish_reason for choice in others] == [None] * (len(others) - 1) + ["length"]
    assert len({chunk.id for chunk in [*chunks, last]}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 12


def test_three_answers_at_once_have_seeds_that_follow(official: OpenAI) -> None:
    asked: Any = {"model": "bundled", "messages": HELLO, "max_tokens": 6}
    alone = [
        official.chat.completions.create(**asked, seed=seed).choices[0].message.content for seed in (5, 6, 7)
    ]
    together = official.chat.completions.create(**asked, seed=5, n=3)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert [choice.message.content for choice in together.choices] == alone
    assert together.usage is not None
    assert together.usage.completion_tokens == 18
    texts = ["", "", ""]
    reasons: dict[int, str] = {}
    for chunk in official.chat.completions.create(**asked, seed=5, n=3, stream=True):
        (choice,) = chunk.choices
        assert choice.index not in reasons
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert texts == alone
    assert reasons == dict.fromkeys(range(3), "length")


def test_a_stop_string_ends_the_answer_before_it(official: OpenAI) -> None:
    asked: Any = {"model": "bundled", "messages": HELLO, "max_tokens": 16, "temperature": 0}
    text = official.chat.completions.create(**asked).choices[0].message.content or ""
    stop = text[8:12]
    stopped = official.chat.completions.create(**asked, stop=[stop, "never there"]).choices[0]
    assert stopped.message.content == text[: text.index(stop)]
    assert stopped.finish_reason == "stop"
    parts = official.chat.completions.create(**asked, stop=stop, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text[: text.index(stop)]


def test_log_probabilities(official: OpenAI) -> None:
    asked: Any = {"model": "bundled", "messages": HELLO, "max_tokens": 8, "temperature": 0, "logprobs": True}
    choice = official.chat.completions.create(**asked, top_logprobs=3).choices[0]
    assert choice.logprobs is not None
    listed = choice.logprobs.content or []
    assert len(listed) == 8
    assert bytes(byte for token in listed for byte in token.bytes or ()).decode() == choice.message.content
    for token in listed:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # at temperature 0
        assert 0 >= token.logprob == token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
    streamed = [
        token
        for chunk in official.chat.completions.create(**asked, top_logprobs=3, stream=True)
        if (logprobs := chunk.choices[0].logprobs) is not None
        for token in logprobs.content or ()
    ]
    assert [token.token for token in streamed] == [token.token for token in listed]
    for one, other in zip(streamed, listed, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_a_bias_forbids_a_token(official: OpenAI) -> None:
    asked: Any = {"model": "bundled", "prompt": "Once", "max_tokens": 1, "temperature": 0, "logprobs": 0}
    first = official.completions.create(**asked).choices[0].text
    ids = [str(token) for token in range(4096)]
    biased = official.completions.create(**asked, logit_bias=dict.fromkeys(ids[:300], -100)).choices[0].text
    forced = official.completions.create(**asked, logit_bias={"300": 100}).choices[0].text
    assert forced != first
    assert biased


def test_a_required_tool_is_called_and_its_answer_taken(official: OpenAI) -> None:
    asked: Any = {
        "model": "bundled",
        "messages": HELLO,
        "tools": [PAINT],
        "parallel_tool_calls": False,
        "max_tokens": CALL_TOKENS,
        "seed": 3,
    }
    for choice in ("required", {"type": "function", "function": {"name": "paint"}}):
        answer = official.chat.completions.create(**asked, tool_choice=choice).choices[0]
        assert answer.finish_reason == "tool_calls"
        (call,) = answer.message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "paint"
        assert json.loads(call.function.arguments)["colour"] in COLOURS
    history = [*HELLO, answer.message, {"role": "tool", "tool_call_id": call.id, "content": "It is done."}]
    after = official.chat.completions.create(
        model="bundled", messages=history, tools=[PAINT], tool_choice="none", max_tokens=8
    )
    assert after.choices[0].message.tool_calls is None


def test_a_streamed_call_has_its_name_in_the_first_part_only(official: OpenAI) -> None:
    chunks = list(
        official.chat.completions.create(
            model="bundled",
            messages=HELLO,
            tools=[PAINT],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=CALL_TOKENS,
            stream=True,
        )
    )
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
    first, *others = parts
    assert first.id
    assert first.function is not None
    assert first.function.name == "paint"
    assert all(part.id is None and part.function and part.function.name is None for part in others)
    arguments = "".join(part.function.arguments or "" for part in parts if part.function)
    assert json.loads(arguments)["colour"] in COLOURS
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_an_answer_by_a_schema(official: OpenAI) -> None:
    answer = official.chat.completions.parse(
        model="bundled", messages=HELLO, response_format=Wall, max_tokens=60
    )
    assert isinstance(answer.choices[0].message.parsed, Wall)
    with official.chat.completions.stream(
        model="bundled", messages=HELLO, response_format=Wall, max_tokens=60
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Wall)


def test_the_asynchronous_client(served: GatewayHere) -> None:
    async def ask() -> tuple[str, str]:
        http = httpx.AsyncClient(transport=served.transport)
        async with AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="none", max_retries=0, http_client=http
        ) as client:
            asked: Any = {"model": "bundled", "messages": HELLO, "max_tokens": 8, "seed": 4}
            whole = await client.chat.completions.create(**asked)
            parts = [
                chunk.choices[0].delta.content or ""
                async for chunk in await client.chat.completions.create(**asked, stream=True)
            ]
            return whole.choices[0].message.content or "", "".join(parts)

    whole, streamed = asyncio.run(ask())
    assert whole == streamed


def test_errors_are_those_of_the_official_client(official: OpenAI) -> None:
    with pytest.raises(NotFoundError) as unknown:
        official.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    for given, param in (({"audio": {"format": "wav"}}, "audio"), ({"top_logprobs": 21}, "top_logprobs")):
        with pytest.raises(BadRequestError) as refused:
            official.chat.completions.create(model="bundled", messages=HELLO, **given)
        assert refused.value.param == param
    with pytest.raises(BadRequestError) as too_long:
        official.chat.completions.create(model="bundled", messages=HELLO, max_tokens=100_000, stream=True)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(InternalServerError, match="embeddings are not served"):
        official.embeddings.create(model="bundled", input="x")


@pytest.mark.proof
def test_an_answer_without_a_limit_ends_with_the_context(official: OpenAI) -> None:
    content = HELLO[0]["content"]
    short = official.chat.completions.create(model="bundled", messages=HELLO, max_tokens=1)
    longer = [{"role": "user", "content": content + "\n" + "x " * 200}]
    more = official.chat.completions.create(model="bundled", messages=longer, max_tokens=1)
    assert short.usage is not None
    assert more.usage is not None
    per_word = (more.usage.prompt_tokens - short.usage.prompt_tokens) / 200
    words = int((CONTEXT - 40 - short.usage.prompt_tokens) / per_word)
    asked: Any = {
        "model": "bundled",
        "messages": [{"role": "user", "content": content + "\n" + "x " * words}],
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    answer = official.chat.completions.create(**asked)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == CONTEXT
    assert answer.usage.completion_tokens < 1024
    with pytest.raises(BadRequestError) as too_long:
        official.chat.completions.create(**asked, max_tokens=answer.usage.completion_tokens + 1)
    assert too_long.value.code == "context_length_exceeded"
