"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, TypeAlias

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, field_validator

from flowedge.client import AsyncGeneration
from flowedge.core.generate_options import MAX_TOKENS
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.answers.answer_request import AnswerRequest, AnswerRequestor, body_of
from flowedge.gateway.answers.body import Arguments, not_supported, refused_value, shared
from flowedge.gateway.answers.logprobs import LegacyLogprobs
from flowedge.gateway.answers.planned import PlannedAnswer, choice_options
from flowedge.gateway.answers.request_words import RequestWords
from flowedge.gateway.answers.running import RunningAnswers
from flowedge.gateway.answers.usage import RequestUsage
from flowedge.gateway.openai.chunks import DONE, FINISH_REASONS, AnswerHead, ChunkWriter, new_id
from flowedge.gateway.openai.sampling import MAX_CHOICES, SamplingBody
from flowedge.gateway.openai.structure import StructureFields
from flowedge.gateway.streams import event_stream

DEFAULT_TOKENS = 16  # as OpenAI's

Prompt: TypeAlias = str | list[int]
"""A text, or token ids."""


class CompletionBody(SamplingBody, StructureFields):
    """What a client asks of /v1/completions.

    Attributes:
        prompt: one or several prompts.
        logprobs: how many likeliest tokens are listed for each token; None without log-probabilities. With
            `echo`, the prompt's tokens are listed as well.
    """

    unsupported: ClassVar = {**SamplingBody.unsupported, "suffix": ()}

    prompt: list[Any]
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    best_of: int | None = Field(None, ge=1)
    echo: bool = False
    logprobs: int | None = shared("logprobs", None)

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts(cls, given: Any) -> Any:
        one = isinstance(given, str) or (isinstance(given, list) and given and _are_ids(given))
        return [given] if one else given

    @property
    def words(self) -> RequestWords:
        """The names of the request's parameters, for errors."""
        return RequestWords("max_tokens", "prompt", self.structure()[0])

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
        if not self.max_tokens and not (self.max_tokens is None or self.echo):
            raise refused_value("max_tokens", "max_tokens is 0, which only goes with echo; give 1 or more")
        tokens = DEFAULT_TOKENS if self.max_tokens is None else max(self.max_tokens, 1)
        limit = {"max_new_tokens": tokens, "fit_context": self.max_tokens is None}
        return self.sampling_arguments() | limit | {"grammar": self.structure()[1]}

    @property
    def only_echoes(self) -> bool:
        """Whether the prompt alone is wanted; one token is drawn then nevertheless, and left out."""
        return self.max_tokens == 0


def _are_ids(values: list[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)


router = APIRouter()
_KIND = "text_completion"


@router.post("/v1/completions")
async def create_completion(request: Request, caller: AnswerRequestor) -> Response:
    """Continue one or several prompts."""
    body = await body_of(request, CompletionBody)
    asked = AnswerRequest.of(request, caller, body.model, planned_answers(body, caller), body.words)
    if body.stream:
        return event_stream(_events(asked, body), request, last=DONE)
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
        return {**head.fields(), "choices": choices, "usage": _usage(answers, body).openai()}


def _usage(answers: RunningAnswers, body: CompletionBody) -> RequestUsage:
    return answers.usage([0] * len(answers.generations) if body.only_echoes else None)


def _choice(place: int, answer: AsyncGeneration, body: CompletionBody) -> dict[str, Any]:
    prompt, text, tokens = answer.prompt_text, answer.text, answer.logprobs
    if body.only_echoes:
        text, tokens = "", []
    listed = LegacyLogprobs(prompt).listed([*answer.prompt_logprobs, *tokens])
    return {
        "index": place,
        "text": prompt + text,
        "logprobs": None if body.logprobs is None else listed,
        "finish_reason": "length" if body.only_echoes else FINISH_REASONS[answer.finish_reason or ""],
    }


async def _events(asked: AnswerRequest, body: CompletionBody) -> AsyncIterator[str]:
    """Yield the chunks of a stream: the texts and the end of each answer, and the usage."""
    async with asked.running() as answers:
        head = AnswerHead(new_id("cmpl-"), _KIND, asked.model, answers.fingerprint)
        counted = answers.counted if body.counts_continuously else None
        writer = ChunkWriter(head, _KIND, includes_usage=body.includes_usage, counted=counted)
        lists: dict[int, LegacyLogprobs] = {}  # of the answers that have begun
        async for place, chunk in answers.chunks():
            answer = answers.generations[place]
            if chunk is not None and not chunk.token_ids and not chunk.text:
                continue  # the log-probabilities of the prompt come first, in several chunks
            if place not in lists:
                lists[place] = LegacyLogprobs(answer.prompt_text)
                if body.echo:
                    told = lists[place].listed(answer.prompt_logprobs) if answer.prompt_logprobs else None
                    yield writer.choice({**_text_choice(place, answer.prompt_text), "logprobs": told})
            if chunk is None:
                reason = "length" if body.only_echoes else FINISH_REASONS[answer.finish_reason or ""]
                yield writer.choice({**_text_choice(place, ""), "finish_reason": reason})
            elif (chunk.text or chunk.logprobs) and not body.only_echoes:
                told = lists[place].listed(chunk.logprobs) if chunk.logprobs else None
                yield writer.choice({**_text_choice(place, chunk.text), "logprobs": told})
        if body.includes_usage:
            yield writer.usage(_usage(answers, body).openai())
    yield DONE


def _text_choice(place: int, text: str) -> dict[str, Any]:
    return {"index": place, "text": text, "logprobs": None, "finish_reason": None}
