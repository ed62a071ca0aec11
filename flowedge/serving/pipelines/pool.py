"""The pipelines of a gateway, and the choice of one for each request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from flowedge.client import AsyncGeneration, Chunk
from flowedge.core.errors import (
    AccessError,
    CapacityError,
    DeviceError,
    FlowEdgeError,
    PrefixLostError,
    ProtocolError,
)
from flowedge.serving.access.caller import ApiCaller
from flowedge.serving.config import PoolSettings
from flowedge.serving.errors import SERVER, ApiError, UnknownModelError
from flowedge.serving.metrics import PipelineReading
from flowedge.serving.pipelines.member import PipelineClient, PoolMember
from flowedge.serving.pipelines.served import PipelineEntry, ServedModel
from flowedge.serving.record import CURRENT

_OF_PIPELINE = (DeviceError, PrefixLostError, ProtocolError, AccessError)
"""Errors after which another pipeline may answer, and this one is asked how it is."""


@dataclass(frozen=True)
class BegunAnswer:
    """An answer that has begun.

    Attributes:
        client: of the pipeline that answers.
        answer: its state; `chunks` are to be iterated over, not this.
        first: its first chunk; None if it has none.
    """

    client: PipelineClient
    answer: AsyncGeneration
    first: Chunk | None

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield all chunks, as they come."""
        if self.first is not None:
            yield self.first
            async for chunk in self.answer:
                yield chunk


class PipelinePool:
    """An async context in which pipelines are watched, and requests find one that answers."""

    def __init__(self, entries: Sequence[PipelineEntry], settings: PoolSettings) -> None:
        self._members = [PoolMember(entry, settings) for entry in entries]
        self._created = int(time.time())
        self._turn = 0
        self._running = AsyncExitStack()

    async def __aenter__(self) -> PipelinePool:
        async with AsyncExitStack() as stack:
            await asyncio.gather(*(stack.enter_async_context(member) for member in self._members))
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._running.aclose()

    @property
    def problem(self) -> str:
        """Why no pipeline can answer now; "" if one can."""
        if any(member.ready for member in self._members):
            return ""
        reasons = "; ".join(f"{member.label}: {member.problem}" for member in self._members)
        return f"no pipeline is ready: {reasons}"

    def models(self) -> list[ServedModel]:
        """Return the models, also those whose pipelines are all gone, in the order of the pipelines."""
        by_name: dict[str, list[PoolMember]] = {}
        for member in self._members:
            if member.model:
                by_name.setdefault(member.model, []).append(member)
        return [self._model(name, members) for name, members in by_name.items()]

    def model(self, name: str) -> ServedModel:
        """Return the model of this name or alias.

        Raises:
            UnknownModelError: when there is none.
        """
        models = self.models()
        for model in models:
            if name == model.name or name in model.aliases:
                return model
        raise UnknownModelError(name, [model.name for model in models])

    @property
    def members(self) -> tuple[PoolMember, ...]:
        """The pipelines, in the order of the settings."""
        return tuple(self._members)

    @property
    def addresses(self) -> dict[str, str]:
        """Address of the draft node of each pipeline, by the pipeline's name."""
        return {member.label: member.address for member in self._members}

    def client(self, pipeline: str) -> PipelineClient:
        """Return the client of a pipeline by its name, ready or not, for questions beside requests.

        Raises:
            ApiError: with status 404, when there is no such pipeline.
        """
        for member in self._members:
            if member.label == pipeline:
                return member.client
        raise ApiError(404, f"there is no pipeline {pipeline[:200]!r} here", kind="not_found_error")

    @asynccontextmanager
    async def lease(
        self, model: str, caller: ApiCaller, *, exclude: Collection[str] = ()
    ) -> AsyncIterator[PipelineClient]:
        """Yield a client of the least loaded pipeline that can answer; the context counts as its load.

        An error of the pipeline that leaves the context has the pipeline asked how it is, before it gets
        another request.

        Args:
            model: name or alias.
            exclude: names of pipelines that have failed the request already.

        Raises:
            UnknownModelError: when there is no such model.
            ApiError: with status 429 when the key has no tokens left, 503 when no pipeline can answer.
        """
        caller.check()
        member = self._choose(self.model(model), exclude)
        record = CURRENT.get()
        if record is not None:
            record.model, record.pipeline = member.model, member.label
        member.leases += 1
        try:
            yield member.client
        except _OF_PIPELINE as error:
            member.failed(error)
            raise
        finally:
            member.leases -= 1

    @asynccontextmanager
    async def begin(
        self, model: str, caller: ApiCaller, start: Callable[[PipelineClient], AsyncGeneration]
    ) -> AsyncIterator[BegunAnswer]:
        """Yield an answer whose first chunk has come; a pipeline that fails before gives way to another.

        The answer is cancelled when the context ends, unless it is complete.

        Args:
            start: asks a client, as AsyncClient.generate or AsyncClient.chat do.

        Raises:
            ApiError: as `lease`.
            FlowEdgeError: why the last of the pipelines has failed.
        """
        failed: list[str] = []
        problem: FlowEdgeError | None = None
        while True:
            async with AsyncExitStack() as stack:
                try:
                    client = await stack.enter_async_context(self.lease(model, caller, exclude=failed))
                except ApiError as error:
                    raise problem or error from problem
                answer = start(client)
                stack.callback(answer.close)
                try:
                    first = await anext(answer, None)
                except FlowEdgeError as error:
                    if not may_go_elsewhere(error):
                        raise
                    problem = error
                    failed.append(client.pipeline)
                    self._note_failure(client.pipeline, error)
                    continue
                yield BegunAnswer(client, answer, first)
                return

    def _note_failure(self, pipeline: str, error: FlowEdgeError) -> None:
        if isinstance(error, _OF_PIPELINE):
            next(member for member in self._members if member.label == pipeline).failed(error)

    def readings(self) -> Iterator[PipelineReading]:
        """Yield the gauges of each pipeline."""
        for member in self._members:
            yield member.model, member.label, member.reading()

    def _choose(self, model: ServedModel, exclude: Collection[str]) -> PoolMember:
        members = [member for member in self._members if member.model == model.name]
        ready = [member for member in members if member.ready and member.label not in exclude]
        if not ready:
            reasons = "; ".join(f"{member.label}: {member.problem or 'it failed'}" for member in members)
            raise ApiError(
                503,
                f"no pipeline of {model.name} can answer now: {reasons}",
                kind=SERVER,
                code="no_pipeline",
                retry_after_s=min(member.asked_in_s for member in members),
            )
        self._turn += 1  # pipelines of equal load take turns
        start = self._turn % len(ready)
        return min((*ready[start:], *ready[:start]), key=lambda member: member.load)

    def _model(self, name: str, members: list[PoolMember]) -> ServedModel:
        contexts = [member.context for member in members if member.context]
        return ServedModel(
            name,
            tuple(dict.fromkeys(alias for member in members for alias in member.aliases)),
            tuple(member.label for member in members),
            tuple(member.label for member in members if member.ready),
            self._created,
            min(contexts, default=None),
        )


def may_go_elsewhere(error: Exception) -> bool:
    """Return whether another pipeline may answer a request that failed with an error before any output."""
    if isinstance(error, CapacityError):
        return error.retry_after_s is not None
    return isinstance(error, _OF_PIPELINE) and isinstance(error, FlowEdgeError)
