"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from flowedge.client import AsyncGeneration, TokenLogprob
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.answers.answer_request import AnswerRequest, AnswerRequestor, body_of
from flowedge.gateway.answers.logprobs import chat_logprobs
from flowedge.gateway.answers.planned import ChatPrompt, PlannedAnswer, choice_options
from flowedge.gateway.openai.chat_body import ChatCompletionBody
from flowedge.gateway.openai.chunks import (
    DONE,
    FINISH_REASONS,
    AnswerHead,
    ChunkWriter,
    called_tools,
    delta_of,
    new_id,
)
from flowedge.gateway.openai.messages import chat_messages
from flowedge.gateway.streams import event_stream

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request, caller: AnswerRequestor) -> Response:
    """Answer the last message of a conversation."""
    body = await body_of(request, ChatCompletionBody)
    asked = AnswerRequest.of(request, caller, body.model, planned_answers(body, caller), body.words)
    if body.stream:
        return event_stream(_events(asked, body), request, last=DONE)
    return JSONResponse(await _completion(asked))


def planned_answers(body: ChatCompletionBody, caller: ApiCaller) -> list[PlannedAnswer]:
    """Return the answers that a request asks for.

    Raises:
        ApiError: when parameters do not fit together.
        BadRequestError: when the client would refuse an option.
    """
    prompt = ChatPrompt(chat_messages(body.messages), body.tool_use(), body.template_values())
    options = choice_options(body.answer_arguments(), body.seed, caller, body.n)
    return [PlannedAnswer(prompt, each) for each in options]


async def _completion(asked: AnswerRequest) -> dict[str, Any]:
    """Return the answers when they are complete."""
    async with asked.running() as answers:
        await answers.complete()
        head = AnswerHead(new_id("chatcmpl-"), "chat.completion", asked.model, answers.fingerprint)
        choices = [_choice(place, each) for place, each in enumerate(answers.generations)]
        return {**head.fields(), "choices": choices, "usage": answers.usage().openai()}


def _choice(place: int, answer: AsyncGeneration) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["content"] = answer.text or None
        message["tool_calls"] = called_tools(answer.tool_calls)
    return {
        "index": place,
        "message": message,
        "logprobs": {"content": chat_logprobs(answer.logprobs), "refusal": None} if answer.logprobs else None,
        "finish_reason": FINISH_REASONS[answer.finish_reason or ""],
    }


async def _events(asked: AnswerRequest, body: ChatCompletionBody) -> AsyncIterator[str]:
    """Yield the chunks of a stream: the role, the deltas and the end of each answer, and the usage."""
    async with asked.running() as answers:
        head = AnswerHead(new_id("chatcmpl-"), "chat.completion", asked.model, answers.fingerprint)
        counted = answers.counted if body.counts_continuously else None
        kind, includes_usage = "chat.completion.chunk", body.includes_usage
        writer = ChunkWriter(head, kind, includes_usage=includes_usage, counted=counted)
        begun: set[int] = set()
        async for place, chunk in answers.chunks():
            delta = {"content": ""} if chunk is None or chunk.logprobs else {}
            delta |= {} if chunk is None else delta_of(chunk)
            if delta and place not in begun:
                begun.add(place)
                # Of an answer that begins with a call, clients would make an empty text beside the call.
                content = "" if "content" in delta else None
                yield writer.choice(_delta_choice(place, {"role": "assistant", "content": content}))
            if chunk is None:
                yield writer.choice(_end_of(place, answers.generations[place]))
            elif delta:
                yield writer.choice(_delta_choice(place, delta, chunk.logprobs))
        if body.includes_usage:
            yield writer.usage(answers.usage().openai())
    yield DONE


def _delta_choice(place: int, delta: dict[str, Any], logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
    listed = {"content": chat_logprobs(logprobs), "refusal": None} if logprobs else None
    return {"index": place, "delta": delta, "logprobs": listed, "finish_reason": None}


def _end_of(place: int, answer: AsyncGeneration) -> dict[str, Any]:
    reason = FINISH_REASONS[answer.finish_reason or ""]
    return {"index": place, "delta": {}, "logprobs": None, "finish_reason": reason}
