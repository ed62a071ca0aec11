"""The pipelines of a gateway, and the choice of one for each request."""

from __future__ import annotations

import asyncio
import bisect
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from flowedge.core.errors import (
    AccessError,
    CapacityError,
    DeviceError,
    DeviceLostError,
    FlowEdgeError,
    PipelineNotReadyError,
    PrefixLostError,
    ProtocolError,
)
from flowedge.core.request import PRIORITIES
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.config import PoolSettings
from flowedge.gateway.errors import SERVER, ApiError, UnknownModelError
from flowedge.gateway.metrics import PipelineReading
from flowedge.gateway.pipelines.member import PipelineClient, PoolMember
from flowedge.gateway.pipelines.opening import DeviceProgress
from flowedge.gateway.pipelines.served import PipelineEntry, ServedModel
from flowedge.gateway.record import CURRENT
from flowedge.network.deadline import set_within


class SlotQueue:
    """The most urgent request goes first; of equally urgent ones the first that came."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Event]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def goes_before(self, rank: int) -> bool:
        """Return whether a waiting request goes before a new one; rank: of the new one, 0 the most urgent."""
        return bool(self._waiting) and self._waiting[0][0] <= rank

    def enter(self, rank: int) -> asyncio.Event:
        """Have a request wait; return the event that is set when there may be room."""
        event = asyncio.Event()
        self._number += 1
        bisect.insort(self._waiting, (rank, self._number, event))
        return event

    def leave(self, event: asyncio.Event) -> None:
        """Take out a request, which has its turn or waits no longer."""
        self._waiting = [entry for entry in self._waiting if entry[2] is not event]

    def is_first(self, event: asyncio.Event) -> bool:
        """Return whether it is the turn of the request with this event."""
        return bool(self._waiting) and self._waiting[0][2] is event

    def wake(self) -> None:
        """Tell the first request that there may be room."""
        if self._waiting:
            self._waiting[0][2].set()


_MOST_TRIES = 3  # of a request with one pipeline
_LOOK_S = 1.0  # between two looks of a waiting request at the pipelines

_OF_PIPELINE = (DeviceError, PrefixLostError, ProtocolError, AccessError)
"""Errors after which another pipeline may answer, and this one is asked how it is; see PoolMember.failed."""


class PipelinePool:
    """An async context in which pipelines are watched, and requests find one that answers.

    Attributes:
        opening: what is done before there are pipelines; None when all of them are known.
        watchers: are set when a pipeline can answer, or cannot any more.
    """

    def __init__(self, entries: Sequence[PipelineEntry], settings: PoolSettings) -> None:
        self._settings = settings
        self.opening: DeviceProgress | None = None
        self.watchers: set[asyncio.Event] = set()
        self._members = [PoolMember(entry, settings, self._wake) for entry in entries]
        self._queues: dict[str, SlotQueue] = {}  # by model
        self._created = int(time.time())
        self._turn = 0
        self._running = AsyncExitStack()

    async def __aenter__(self) -> PipelinePool:
        await self._enter(self._members)
        return self

    async def add(self, entries: Sequence[PipelineEntry]) -> None:
        """Watch further pipelines; return when each was asked, and set up if it was idle."""
        added = [PoolMember(entry, self._settings, self._wake) for entry in entries]
        self._members += added
        self.opening = None
        await self._enter(added)

    async def _enter(self, members: Sequence[PoolMember]) -> None:
        for member in members:
            member.client.others = partial(self._others, member)
        await asyncio.gather(*(self._running.enter_async_context(member) for member in members))

    async def __aexit__(self, *error: object) -> None:
        await self._running.aclose()

    def _others(self, member: PoolMember) -> list[PipelineClient]:
        """Return the clients of the other pipelines of a member's model that can answer."""
        of_model = [each for each in self._members if each.model == member.model and each is not member]
        return [each.client for each in of_model if each.ready]

    @property
    def problem(self) -> str:
        """Why no pipeline can answer now; "" if one can."""
        if any(member.ready for member in self._members):
            return ""
        if self.opening is not None:
            return f"the gateway opens its pipelines: {self.opening.reason}"
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
            ApiError: with status 503, while a pipeline whose model is not known yet is being set up.
            UnknownModelError: when there is none.
        """
        if self.opening is not None:
            raise _not_ready(self.problem)
        models = self.models()
        for model in models:
            if name == model.name or name in model.aliases:
                return model
        unknown = [member for member in self._members if not member.model and member.not_ready]
        if unknown:
            raise _none_ready(f"whether there is a model {name[:200]!r} is not known yet", unknown)
        raise UnknownModelError(name, [model.name for model in models])

    @property
    def members(self) -> tuple[PoolMember, ...]:
        """The pipelines, in the order of the settings."""
        return tuple(self._members)

    @property
    def waiting(self) -> int:
        """Requests that wait in the gateway, because their pipelines have as many as they take."""
        return sum(map(len, self._queues.values()))

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
        self,
        model: str,
        caller: ApiCaller,
        *,
        failed: Mapping[str, bool] | None = None,
        answers: int = 1,
        wait_s: float = math.inf,
    ) -> AsyncIterator[PipelineClient]:
        """Yield a client of the least loaded pipeline that can answer; the context counts as its load.

        Where none can, but one has lost a device and may soon be back, the request waits for it. An error of
        the pipeline that leaves the context has the pipeline asked how it is, before it gets another request.

        Args:
            model: name or alias.
            failed: names of pipelines that have failed the request already, and whether they may be tried
                again where there is no other.
            answers: number of answers that run at once, at most `requests_each`.
            wait_s: seconds that the request may wait, if they are fewer than the settings allow.

        Raises:
            UnknownModelError: when there is no such model.
            ApiError: with status 429 when the key has no tokens left or there is no room in time, 503 when
                no pipeline can answer.
        """
        caller.check()
        served = self.model(model)
        queue = self._queues.setdefault(served.name, SlotQueue())
        wait_s = min(wait_s, self._settings.queue_s)
        member = await self._take(served, caller, failed or {}, queue, answers, wait_s)
        record = CURRENT.get()
        if record is not None:
            record.model, record.pipeline = member.model, member.label
        try:
            yield member.client
        except _OF_PIPELINE as error:
            member.failed(error)
            raise
        finally:
            member.leases -= answers
            queue.wake()

    def _wake(self) -> None:
        """Tell the requests that wait that there may be room, and the watchers."""
        for queue in self._queues.values():
            queue.wake()
        for watcher in self.watchers:
            watcher.set()

    def readings(self) -> Iterator[PipelineReading]:
        """Yield the gauges of each pipeline."""
        for member in self._members:
            yield member.model, member.label, member.gauges()

    async def _take(
        self,
        model: ServedModel,
        caller: ApiCaller,
        failed: Mapping[str, bool],
        queue: SlotQueue,
        answers: int,
        wait_s: float,
    ) -> PoolMember:
        """Return a pipeline that has room, with the request among its leases.

        Raises what `lease` does.
        """
        rank, until = PRIORITIES.index(caller.priority), time.monotonic() + wait_s
        turn: asyncio.Event | None = None
        try:
            while True:
                members = [member for member in self._members if member.model == model.name]
                usable = [member for member in members if failed.get(member.label, True)]
                ready = [member for member in usable if member.ready]
                room = self._settings.requests_each - answers
                free = [member for member in ready if member.leases <= room]
                is_first = not queue.goes_before(rank) if turn is None else queue.is_first(turn)
                if free and is_first:
                    others = [member for member in free if member.label not in failed]
                    member = self._least_loaded(others or free)
                    member.leases += answers
                    return member
                left = until - time.monotonic()
                if not ready and (left <= 0 or not any(member.recovering for member in usable)):
                    raise _none_ready(f"no pipeline of {model.name} can answer now", members)
                if left <= 0:
                    raise _queue_full(model, len(queue), wait_s)
                turn = turn or queue.enter(rank)
                turn.clear()
                await set_within(min(left, _LOOK_S), turn)
        finally:
            if turn is not None:
                queue.leave(turn)
            queue.wake()

    def _least_loaded(self, ready: list[PoolMember]) -> PoolMember:
        self._turn += 1  # pipelines of equal load take turns
        start = self._turn % len(ready)
        return min((*ready[start:], *ready[:start]), key=lambda member: member.load)

    def _model(self, name: str, members: list[PoolMember]) -> ServedModel:
        contexts = [member.context for member in members if member.context]
        known = next((member.device for member in members if member.device is not None), None)
        return ServedModel(
            name,
            tuple(dict.fromkeys(alias for member in members for alias in member.aliases)),
            tuple(member.label for member in members),
            tuple(member.label for member in members if member.ready),
            self._created,
            min(contexts, default=None),
            "" if known is None else known.family,
            () if known is None else known.capabilities,
            "" if known is None else str(known.quant),
            known is not None and known.no_chat_template,
            tuple(member.label for member in members if member.recovering),
            {member.label: member.problem for member in members if not member.ready},
        )


def _not_ready(problem: str) -> ApiError:
    code, wait_s = PipelineNotReadyError.code, PipelineNotReadyError.retry_after_s
    return ApiError(503, problem, kind=SERVER, code=code, retry_after_s=wait_s)


def _none_ready(problem: str, members: Sequence[PoolMember]) -> ApiError:
    """Return the error of a request that no pipeline can answer; some may be about to be ready."""
    reasons = "; ".join(f"{member.label}: {member.problem or 'it failed'}" for member in members)
    if any(member.not_ready for member in members):
        return _not_ready(f"{problem}: {reasons}")
    wait_s = min(member.next_query_s for member in members)
    return ApiError(503, f"{problem}: {reasons}", kind=SERVER, code="no_pipeline", retry_after_s=wait_s)


def _queue_full(model: ServedModel, waiting: int, seconds: float) -> ApiError:
    return ApiError(
        429,
        f"all pipelines of {model.name} have as many requests as they take, and {waiting} wait; there was no "
        f"room within {seconds:g} s",
        kind="rate_limit_error",
        code="queue_full",
        retry_after_s=seconds / 4,
    )


def may_try_again(errors: Sequence[FlowEdgeError]) -> bool:
    """Return whether a pipeline may be tried again that has failed a request with these errors.

    A lost device may be back; but a request that costs one each time is not sent for ever.
    """
    return len(errors) < _MOST_TRIES and isinstance(errors[-1], DeviceLostError | PipelineNotReadyError)


def may_go_elsewhere(error: Exception) -> bool:
    """Return whether another pipeline may answer a request that failed with an error before any output."""
    if isinstance(error, CapacityError):
        return error.retry_after_s is not None
    return isinstance(error, _OF_PIPELINE) and isinstance(error, FlowEdgeError)
