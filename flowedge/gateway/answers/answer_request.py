"""What a request asks of the pipelines of a model: the answers run on the first that can begin them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias
from urllib.parse import quote

from fastapi import Depends, Request

from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.gateway.access.caller import ApiCaller, authorised
from flowedge.gateway.answers.body import BodyT, read_body
from flowedge.gateway.answers.planned import PlannedAnswer
from flowedge.gateway.answers.request_words import RequestWords
from flowedge.gateway.answers.running import AnswerDeadline, RunningAnswers
from flowedge.gateway.errors import ApiError
from flowedge.gateway.pipelines.member import PipelineClient
from flowedge.gateway.pipelines.pool import may_go_elsewhere, may_try_again
from flowedge.gateway.record import CURRENT
from flowedge.gateway.state import Gateway, gateway_of

IGNORED = "x-flowedge-ignored"
"""The header that names the parameters of a request that change nothing."""
SYSTEM = "x-flowedge-system"
"""The header that says that system messages stand in messages of the user."""
_MOST_NAMED = 1000  # characters of that header
AnswerRequestor: TypeAlias = Annotated[ApiCaller, Depends(authorised)]
"""The parameter of an endpoint that asks for answers."""


async def body_of(request: Request, model: type[BodyT]) -> BodyT:
    """Return the body of a request; the answer's headers name the parameters that change nothing.

    Raises:
        ApiError: as `read_body`; where the gateway is strict, also for those parameters.
    """
    left_out: list[str] = []
    strict = gateway_of(request).settings.limits.strict
    body = read_body(model, await request.body(), None if strict else left_out)
    record = CURRENT.get()
    if left_out and record is not None:
        record.headers[IGNORED] = quote(", ".join(left_out), safe="[]., ")[:_MOST_NAMED]
    return body


@dataclass(frozen=True)
class AnswerRequest:
    """The answers that a request asks of a model.

    Attributes:
        model: name or alias.
        words: the names that the request has for what an error may speak of.
        deadline: of the answers, with the time that they wait for a pipeline.
    """

    gateway: Gateway
    caller: ApiCaller
    model: str
    planned: Sequence[PlannedAnswer]
    request_id: str
    words: RequestWords
    deadline: AnswerDeadline

    @classmethod
    def of(
        cls,
        request: Request,
        caller: ApiCaller,
        model: str,
        planned: Sequence[PlannedAnswer],
        words: RequestWords,
    ) -> AnswerRequest:
        """Return what a request asks for.

        Raises:
            UnknownModelError: when there is no such model.
        """
        gateway = gateway_of(request)
        name = gateway.pipelines.model(model).name
        deadline = AnswerDeadline(gateway.settings.deadlines.answer_s)
        return cls(gateway, caller, name, planned, request.state.request_id, words, deadline)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RunningAnswers]:
        """Yield the answers when the first chunk is there; what is not complete at the end is cancelled.

        A pipeline that fails before the first chunk is replaced by another.

        Raises:
            ApiError: when no pipeline can answer, the key may not ask now, or the time is over.
            FlowEdgeError: the first error of the answers.
        """
        with self.caller.one_request():
            try:
                async with self._on_a_pipeline() as answers:
                    yield answers
            except BadRequestError as error:
                asked = any(each.options.grammar is not None for each in self.planned)
                words = self.words if asked else replace(self.words, form="tools")
                raise words.said_of(error, self.gateway.pipelines.model(self.model).context) from error

    @asynccontextmanager
    async def _on_a_pipeline(self) -> AsyncIterator[RunningAnswers]:
        failed: dict[str, list[FlowEdgeError]] = {}  # by pipeline
        while True:
            client, begun = None, False
            try:
                async with AsyncExitStack() as stack:
                    client = await self._leased(stack, failed)
                    answers = RunningAnswers(
                        client, self.planned, self.request_id, self.deadline, self._at_once
                    )
                    stack.push_async_callback(self._end, answers)
                    self.gateway.note_asker(answers.names, self.caller.name)
                    await answers.begin()
                    self._note_folding(answers)
                    begun = True
                    yield answers
                return
            except FlowEdgeError as error:
                if client is None or begun or not may_go_elsewhere(error):
                    raise
                failed.setdefault(client.pipeline, []).append(error)

    def _note_folding(self, answers: RunningAnswers) -> None:
        record = CURRENT.get()
        if record is not None and any(each.system_folded for each in answers.generations):
            record.headers[SYSTEM] = "in-user-message"

    @property
    def _at_once(self) -> int:
        """The number of answers at the draft node at the same time; more wait for these."""
        return self.gateway.settings.pipelines.requests_each

    async def _leased(
        self, stack: AsyncExitStack, failed: Mapping[str, Sequence[FlowEdgeError]]
    ) -> PipelineClient:
        """Return the client of a pipeline, leased while the stack lasts; see `may_try_again` for `failed`.

        Raises:
            ApiError: when there is none, or the time is over.
            FlowEdgeError: the last failure, when there is none any more.
        """
        pool = self.gateway.pipelines
        try:
            lease = pool.lease(
                self.model,
                self.caller,
                failed={name: may_try_again(errors) for name, errors in failed.items()},
                answers=min(self._at_once, len(self.planned)),
                wait_s=self.deadline.left_s,
            )
            return await stack.enter_async_context(lease)
        except ApiError as error:
            if not self.deadline.left_s:
                raise self.deadline.error() from error
            if failed:
                raise list(failed.values())[-1][-1] from error
            raise

    async def _end(self, answers: RunningAnswers) -> None:
        """End the answers, and count their tokens for metrics and the key."""
        await answers.close()
        for answer in answers.generations:
            self.gateway.metrics.answered(self.model, answers.pipeline, answer.statistics)
        self.gateway.metrics.recovered(self.model, answers.pipeline, answers.pauses_s, answers.broken_off)
        usage = answers.usage()
        self.caller.used(usage.prompt_tokens + usage.new_tokens)
