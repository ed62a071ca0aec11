"""POST /v1/responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.answers.answer_request import AnswerRequest, AnswerRequestor, body_of
from flowedge.gateway.answers.planned import ChatPrompt, PlannedAnswer, choice_options
from flowedge.gateway.answers.request_words import RequestWords
from flowedge.gateway.answers.running import RunningAnswers
from flowedge.gateway.openai.responses_body import ResponseBody
from flowedge.gateway.openai.responses_items import input_messages
from flowedge.gateway.openai.responses_object import ResponseDocument
from flowedge.gateway.openai.responses_output import Event
from flowedge.gateway.streams import ServerEvent, event_stream

router = APIRouter()
_WORDS = RequestWords("max_output_tokens", "input", "text.format")


@router.post("/v1/responses")
async def create_response(request: Request, caller: AnswerRequestor) -> Response:
    """Answer a list of items."""
    body = await body_of(request, ResponseBody)
    asked = AnswerRequest.of(request, caller, body.model, [planned_answer(body, caller)], _WORDS)
    document = ResponseDocument(body, asked.model)
    if body.stream:
        return event_stream(_events(asked, document), request, error_event=document.failed_event)
    return JSONResponse(await _response(asked, document))


def planned_answer(body: ResponseBody, caller: ApiCaller) -> PlannedAnswer:
    """Return the answer that a request asks for.

    Raises:
        ApiError: when parameters do not fit together.
        BadRequestError: when the client would refuse an option.
    """
    messages = input_messages(body.instructions, body.input)
    (options,) = choice_options(body.answer_arguments(), body.seed, caller)
    return PlannedAnswer(ChatPrompt(messages, body.tool_use(), body.template_values()), options)


async def _response(asked: AnswerRequest, document: ResponseDocument) -> dict[str, Any]:
    """Return the response when it is complete."""
    async with asked.running() as answers:
        async for _ in _output_events(answers, document):
            pass
        return document.content(answers.usage())


async def _events(asked: AnswerRequest, document: ResponseDocument) -> AsyncIterator[ServerEvent]:
    """Yield the events of a stream."""
    async with asked.running() as answers:
        yield document.state_event("created")
        yield document.state_event("in_progress")
        async for event in _output_events(answers, document):
            yield document.numbered(event)
        yield document.state_event(document.status, answers.usage())


async def _output_events(answers: RunningAnswers, document: ResponseDocument) -> AsyncIterator[Event]:
    """Add the answer to a response, and yield the events of its items."""
    async for _, chunk in answers.chunks():
        if chunk is not None:
            for event in document.output.add(chunk):
                yield event
    for event in document.output.finish(document.end(answers.generations[0].finish_reason)):
        yield event
