"""POST /api/chat and /api/generate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from flowedge.client import AsyncGeneration, ToolCall
from flowedge.core.errors import BadRequestError
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.answers.answer_request import AnswerRequest, AnswerRequestor, body_of
from flowedge.gateway.answers.logprobs import chat_logprobs
from flowedge.gateway.answers.planned import PlannedAnswer, Prompt, choice_options
from flowedge.gateway.answers.request_words import RequestWords
from flowedge.gateway.answers.running import RunningAnswers
from flowedge.gateway.ollama.chat_body import ChatBody, GenerateBody
from flowedge.gateway.ollama.models import known_name
from flowedge.gateway.ollama.options import AnswerBody
from flowedge.gateway.state import gateway_of
from flowedge.gateway.streams import ndjson_stream

router = APIRouter()

_DONE_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "tool_calls": "stop"}
_NANOSECONDS = 1_000_000_000

Line = dict[str, Any]
Contents = Callable[[str, str, list[ToolCall]], Line]
"""Returns the fields that hold a text, reasoning and tool calls."""


@router.post("/api/chat")
async def chat(request: Request, caller: AnswerRequestor) -> Response:
    """Answer the last message of a conversation."""
    body = await body_of(request, ChatBody)
    prompt = body.prompt() if body.messages else None
    return await _answer(request, caller, body, prompt, _message)


@router.post("/api/generate")
async def generate(request: Request, caller: AnswerRequestor) -> Response:
    """Answer a prompt."""
    body = await body_of(request, GenerateBody)
    prompt = body.full_prompt() if body.prompt else None
    return await _answer(request, caller, body, prompt, _response)


async def _answer(
    request: Request, caller: ApiCaller, body: AnswerBody, prompt: Prompt | None, contents: Contents
) -> Response:
    """Answer a prompt; without one the client only wants the model to be loaded, which it is."""
    name = known_name(gateway_of(request).pipelines, body.model)
    if prompt is None:
        return JSONResponse(
            {**_head(body.model), **contents("", "", []), "done": True, "done_reason": "load"}
        )
    words = RequestWords(
        "num_predict", "messages" if isinstance(body, ChatBody) else "prompt", "format", "think"
    )
    (options,) = choice_options(body.answer_arguments(), body.options.seed, caller)
    asked = AnswerRequest.of(request, caller, name, [PlannedAnswer(prompt, options)], words)
    if body.stream:
        return ndjson_stream(_lines(asked, body.model, contents), request)
    return JSONResponse(await _whole(asked, body.model, contents))


async def _whole(asked: AnswerRequest, model: str, contents: Contents) -> Line:
    """Return the answer when it is complete."""
    async with asked.running() as answers:
        await answers.complete()
        answer = answers.generations[0]
        line = {**_head(model), **contents(answer.text, answer.reasoning, complete_calls(answer))}
        if answer.logprobs:
            line["logprobs"] = chat_logprobs(answer.logprobs)
        return {**line, **end_fields(answers)}


async def _lines(asked: AnswerRequest, model: str, contents: Contents) -> AsyncIterator[Line]:
    """Yield the lines of a stream: the text as it comes, tool calls when they are complete, and the end."""
    async with asked.running() as answers:
        async for _, chunk in answers.chunks():
            if chunk is not None and (chunk.text or chunk.reasoning or chunk.logprobs):
                line = {**_head(model), **contents(chunk.text, chunk.reasoning, []), "done": False}
                if chunk.logprobs:
                    line["logprobs"] = chat_logprobs(chunk.logprobs)
                yield line
        calls = complete_calls(answers.generations[0])
        if calls:
            yield {**_head(model), **contents("", "", calls), "done": False}
        yield {**_head(model), **contents("", "", []), **end_fields(answers)}


def _head(model: str) -> Line:
    now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
    return {"model": model, "created_at": now}


def _message(text: str, reasoning: str, calls: list[ToolCall]) -> Line:
    """Return the fields of /api/chat."""
    message: Line = {"role": "assistant", "content": text}
    if reasoning:
        message["thinking"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.values}} for call in calls
        ]
    return {"message": message}


def _response(text: str, reasoning: str, _: list[ToolCall]) -> Line:
    """Return the fields of /api/generate, which has no tools."""
    return {"response": text, **({"thinking": reasoning} if reasoning else {})}


def complete_calls(answer: AsyncGeneration) -> list[ToolCall]:
    """Return the tool calls of an answer, without one that the answer's limit has cut off."""
    found = []
    for call in answer.tool_calls:
        try:
            _ = call.values
        except BadRequestError:
            continue
        found.append(call)
    return found


def end_fields(answers: RunningAnswers) -> Line:
    """Return the fields of the last line; durations are in nanoseconds."""
    answer, usage = answers.generations[0], answers.usage()
    measured = answer.statistics
    return {
        "done": True,
        "done_reason": _DONE_REASONS[answer.finish_reason or ""],
        "total_duration": _nanoseconds(measured.get("total_s")),
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(measured.get("ttft_s")),
        "eval_count": usage.new_tokens,
        "eval_duration": _nanoseconds(measured.get("decode_s")),
    }


def _nanoseconds(seconds: float | None) -> int:
    return round((seconds or 0.0) * _NANOSECONDS)
