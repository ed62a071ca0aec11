"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from flowedge.client import AsyncGeneration, Chunk
from flowedge.serving.access.caller import ApiCaller
from flowedge.serving.answers.asked import Asked, AskedBy
from flowedge.serving.answers.body import read_body
from flowedge.serving.answers.logprobs import legacy_logprobs
from flowedge.serving.answers.planned import PlannedAnswer, choice_options
from flowedge.serving.openai.chunks import DONE, FINISH_REASONS, AnswerHead, ChunkWriter, new_id
from flowedge.serving.openai.completion_body import CompletionBody
from flowedge.serving.streams import event_stream

router = APIRouter()
_KIND = "text_completion"


@router.post("/v1/completions")
async def create_completion(request: Request, caller: AskedBy) -> Response:
    """Continue one or several prompts."""
    body = read_body(CompletionBody, await request.body())
    asked = Asked.of(request, caller, body.model, planned_answers(body, caller))
    if body.stream:
        return event_stream(_events(asked, body), request)
    return JSONResponse(await _completion(asked, body))


def planned_answers(body: CompletionBody, caller: ApiCaller) -> list[PlannedAnswer]:
    """Return the answers that a request asks for: those of the first prompt, then those of the next.

    Raises:
        ApiError: when parameters do not fit together.
        BadRequestError: when the client would refuse an option.
    """
    options = choice_options(body.answer_arguments(), body.seed, caller, body.n)
    return [
        PlannedAnswer(prompt, each, place) for place, prompt in enumerate(body.prompts) for each in options
    ]


async def _completion(asked: Asked, body: CompletionBody) -> dict[str, Any]:
    """Return the answers when they are complete."""
    async with asked.running() as answers:
        await answers.complete()
        head = AnswerHead(new_id("cmpl-"), _KIND, asked.model, answers.fingerprint)
        choices = [_choice(place, each, body) for place, each in enumerate(answers.generations)]
        return {**head.fields(), "choices": choices, "usage": answers.usage().openai()}


def _choice(place: int, answer: AsyncGeneration, body: CompletionBody) -> dict[str, Any]:
    return {
        "index": place,
        "text": answer.prompt_text + answer.text if body.echo else answer.text,
        "logprobs": None if body.logprobs is None else legacy_logprobs(answer.logprobs, 0)[0],
        "finish_reason": FINISH_REASONS[answer.finish_reason or ""],
    }


async def _events(asked: Asked, body: CompletionBody) -> AsyncIterator[str]:
    """Yield the chunks of a stream: the texts and the end of each answer, and the usage."""
    async with asked.running() as answers:
        head = AnswerHead(new_id("cmpl-"), _KIND, asked.model, answers.fingerprint)
        writer = ChunkWriter(head, _KIND, includes_usage=body.includes_usage)
        offsets = [0] * len(answers.generations)  # characters of each answer's tokens so far
        echoed: set[int] = set()
        async for place, chunk in answers.chunks():
            answer = answers.generations[place]
            if body.echo and place not in echoed:
                echoed.add(place)
                yield writer.choice(_text_choice(place, answer.prompt_text))
            if chunk is None:
                reason = FINISH_REASONS[answer.finish_reason or ""]
                yield writer.choice({**_text_choice(place, ""), "finish_reason": reason})
            elif chunk.text or chunk.logprobs:
                logprobs, offsets[place] = _listed(chunk, offsets[place])
                yield writer.choice({**_text_choice(place, chunk.text), "logprobs": logprobs})
        if body.includes_usage:
            yield writer.usage(answers.usage().openai())
    yield DONE


def _text_choice(place: int, text: str) -> dict[str, Any]:
    return {"index": place, "text": text, "logprobs": None, "finish_reason": None}


def _listed(chunk: Chunk, offset: int) -> tuple[dict[str, Any] | None, int]:
    """Return the log-probabilities of a chunk, None without any, and the offset behind it."""
    return legacy_logprobs(chunk.logprobs, offset) if chunk.logprobs else (None, offset)
