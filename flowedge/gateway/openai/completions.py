"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar, TypeAlias

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, field_validator

from flowedge.client import AsyncGeneration, Chunk
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.answers.answer_request import AnswerRequest, AnswerRequestor, body_of
from flowedge.gateway.answers.body import Arguments, not_supported, refused_value, shared
from flowedge.gateway.answers.logprobs import legacy_logprobs
from flowedge.gateway.answers.planned import PlannedAnswer, choice_options
from flowedge.gateway.answers.request_words import RequestWords
from flowedge.gateway.openai.chunks import DONE, FINISH_REASONS, AnswerHead, ChunkWriter, new_id
from flowedge.gateway.openai.sampling import MAX_CHOICES, SamplingBody
from flowedge.gateway.streams import event_stream

DEFAULT_TOKENS = 16  # as OpenAI's

Prompt: TypeAlias = str | list[int]
"""A text, or token ids."""


class CompletionBody(SamplingBody):
    """What a client asks of /v1/completions.

    Attributes:
        prompt: one or several prompts.
        logprobs: how many likeliest tokens are listed for each token; None without log-probabilities.
    """

    unsupported: ClassVar = {**SamplingBody.unsupported, "suffix": ()}

    prompt: list[Any]
    best_of: int | None = Field(None, ge=1)
    echo: bool = False
    logprobs: int | None = shared("logprobs", None)

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts(cls, given: Any) -> Any:
        one = isinstance(given, str) or (isinstance(given, list) and given and _are_ids(given))
        return [given] if one else given

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts in their order.

        Raises:
            ApiError: when there is none, there are too many, or one is neither text nor token ids.
        """
        if not self.prompt:
            raise refused_value("prompt", "prompt is empty; give a text or token ids")
        if len(self.prompt) * self.n > MAX_CHOICES:
            raise refused_value(
                "prompt",
                f"{len(self.prompt)} prompts by n = {self.n} are over {MAX_CHOICES} answers; give fewer",
            )
        for place, prompt in enumerate(self.prompt):
            if not (isinstance(prompt, str) or (isinstance(prompt, list) and _are_ids(prompt))) or not prompt:
                raise refused_value(
                    f"prompt[{place}]",
                    f"prompt[{place}] is {prompt!r:.100}; it must be a text or token ids, and not empty",
                )
        return self.prompt

    def answer_arguments(self) -> Arguments:
        """Return the client's arguments of every answer, without the seed.

        Raises:
            ApiError: when parameters do not fit together, or `best_of` is not `n`.
        """
        if self.best_of not in (None, self.n):
            raise not_supported("best_of", (self.n,))
        if self.echo and self.logprobs is not None:
            raise refused_value("echo", "echo does not go with logprobs; leave one of them out")
        limit = {"max_new_tokens": self.max_tokens or DEFAULT_TOKENS, "fit_context": self.max_tokens is None}
        return self.sampling_arguments() | limit


def _are_ids(values: list[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)


router = APIRouter()
_KIND = "text_completion"
_WORDS = RequestWords("max_tokens", "prompt")


@router.post("/v1/completions")
async def create_completion(request: Request, caller: AnswerRequestor) -> Response:
    """Continue one or several prompts."""
    body = await body_of(request, CompletionBody)
    asked = AnswerRequest.of(request, caller, body.model, planned_answers(body, caller), _WORDS)
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


async def _completion(asked: AnswerRequest, body: CompletionBody) -> dict[str, Any]:
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


async def _events(asked: AnswerRequest, body: CompletionBody) -> AsyncIterator[str]:
    """Yield the chunks of a stream: the texts and the end of each answer, and the usage."""
    async with asked.running() as answers:
        head = AnswerHead(new_id("cmpl-"), _KIND, asked.model, answers.fingerprint)
        counted = answers.counted if body.counts_continuously else None
        writer = ChunkWriter(head, _KIND, includes_usage=body.includes_usage, counted=counted)
        offsets = [0] * len(asked.planned)  # characters of each answer's tokens so far
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
