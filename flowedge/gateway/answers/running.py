"""The answers of one request, computed by one pipeline at the same time."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, TypeAlias

from flowedge.client import AsyncGeneration, Chunk, Recovery
from flowedge.gateway.answers.planned import PlannedAnswer
from flowedge.gateway.answers.usage import AnswerUsage, RequestUsage
from flowedge.gateway.errors import ApiError
from flowedge.gateway.pipelines.member import PipelineClient
from flowedge.gateway.record import CURRENT
from flowedge.version import VERSION

_LONGEST_ID = 44  # characters of a request's id before the number of an answer
_GRACE_S = 10.0  # after which a draft node ends an answer that the gateway should have ended

PlacedChunk: TypeAlias = tuple[int, Chunk | None]
"""The place of an answer, and its next chunk; None behind its last one."""


class AnswerDeadline:
    """The time of one request, which runs from when the object is made."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 when there are none."""
        return max(0.0, self._until - time.monotonic())

    def error(self) -> ApiError:
        """Return what a request is answered with whose time is over."""
        limit = f"{self._seconds:g} s, the limit given by deadlines.answer_s"
        return ApiError(504, f"the answer was not complete after {limit}", kind="timeout", code="timeout")


class RunningAnswers:
    """The answers of one request.

    Attributes:
        generations: the answers that were started, in the order in which they were planned.
        names: the ids by which the draft node knows them.
        pipeline: name of the pipeline.
        fingerprint: changes with the model and with the version of FlowEdge.
        pauses_s: seconds of each pause in which an answer waited for a lost device, and then went on.
    """

    def __init__(
        self,
        client: PipelineClient,
        planned: Sequence[PlannedAnswer],
        request_id: str,
        deadline: AnswerDeadline,
        at_once: int,
    ) -> None:
        """Start answers, at most so many at the same time; see PlannedAnswer.start for the errors."""
        self.pipeline = client.pipeline
        self.fingerprint = fingerprint_of(client)
        self._client, self._planned, self._deadline = client, planned, deadline
        self.pauses_s: list[float] = []
        self._lost_at: dict[int, float] = {}  # by answer, of those that wait for a lost device
        self.generations: list[AsyncGeneration] = []
        self.names = _names(request_id, len(planned))
        for _ in range(min(at_once, len(planned))):
            self._start_next()
        self._tokens = [0] * len(planned)  # of the chunks so far
        self._reasoning = [0] * len(planned)  # of these, until the end of the reasoning
        self._first: PlacedChunk | None = None
        self._merged = self._of_several() if len(planned) > 1 else self._of_one()
        self._expired = False
        self._timer = asyncio.get_running_loop().call_later(deadline.left_s, self._expire)

    async def begin(self) -> None:
        """Wait for the first chunk; until then another pipeline can be asked instead.

        Raises what the client raises, and ApiError with status 504 when the time is over.
        """
        self._first = self._in_time(await anext(self._merged))

    async def chunks(self) -> AsyncGenerator[PlacedChunk, None]:
        """Yield the chunks of all answers as they come; raises what `begin` does."""
        if self._first is not None:
            yield self._noted(self._first)
        async for placed in self._merged:
            yield self._noted(self._in_time(placed))

    async def complete(self) -> None:
        """Wait until all answers are complete; raises what `begin` does."""
        async for _ in self.chunks():
            pass

    def counted(self) -> dict[str, Any]:
        """Return the numbers of tokens of the prompts, and of the chunks that `chunks` has yielded."""
        return self.usage(self._tokens).counts()

    def usage(self, tokens: Sequence[int] | None = None) -> RequestUsage:
        """Return the usage of the answers so far; `tokens` are of each, if not all that have come."""
        counts = [len(answer.token_ids) for answer in self.generations] if tokens is None else tokens
        answers = [
            AnswerUsage(planned.place, len(answer.prompt_ids), count, reasoning, answer.statistics)
            for planned, answer, count, reasoning in zip(
                self._planned, self.generations, counts, self._reasoning, strict=False
            )
        ]
        return RequestUsage(answers, self.pipeline)

    async def close(self) -> None:
        """Cancel the answers that are not complete, which frees their caches."""
        self._timer.cancel()
        for generation in self.generations:
            generation.close()
        await self._merged.aclose()

    @property
    def broken_off(self) -> int:
        """The number of answers that wait for a lost device, or did so in vain."""
        return len(self._lost_at)

    def _start_next(self) -> None:
        number = len(self.generations)
        seconds, told = self._deadline.left_s + _GRACE_S, partial(self._note_loss, number)
        self.generations.append(self._planned[number].start(self._client, self.names[number], seconds, told))

    def _note_loss(self, number: int, lost: Recovery | None) -> None:
        """Note that an answer has lost a device, or with None that it goes on."""
        if lost is not None:
            self._lost_at.setdefault(number, time.monotonic())
            self._client.on_loss()
        else:
            self.pauses_s.append(time.monotonic() - self._lost_at.pop(number))
        record = CURRENT.get()
        if record is not None and (lost or not self._lost_at):
            record.note_recovery("" if lost is None else self._client.lost_device(lost))

    def _expire(self) -> None:
        """Cancel the answers when their time is over."""
        self._expired = any(generation.running for generation in self.generations)
        for generation in self.generations:
            generation.close()

    def _in_time(self, placed: PlacedChunk) -> PlacedChunk:
        """Return a chunk; a cancelled answer ends without an error of its own."""
        if self._expired:
            raise self._deadline.error()
        return placed

    def _noted(self, placed: PlacedChunk) -> PlacedChunk:
        place, chunk = placed
        if chunk is not None:
            self._tokens[place] += len(chunk.token_ids)
            if chunk.reasoning:
                self._reasoning[place] = self._tokens[place]
        return placed

    async def _of_one(self) -> AsyncGenerator[PlacedChunk, None]:
        async for chunk in self.generations[0]:
            yield 0, chunk
        yield 0, None

    async def _of_several(self) -> AsyncGenerator[PlacedChunk, None]:
        """Yield the chunks of all answers, each of which makes room for one that waits; an error ends all."""
        # Without a limit: the answers' own limits bound what waits, and a slow client is cut off.
        ready: asyncio.Queue[PlacedChunk | asyncio.Task[None]] = asyncio.Queue()

        async def take(place: int) -> None:
            async for chunk in self.generations[place]:
                ready.put_nowait((place, chunk))
            ready.put_nowait((place, None))

        tasks: list[asyncio.Task[None]] = []
        try:
            ended = 0
            while ended < len(self._planned):
                while len(tasks) < len(self.generations):
                    tasks.append(asyncio.create_task(take(len(tasks))))
                    tasks[-1].add_done_callback(ready.put_nowait)
                found = await ready.get()
                if isinstance(found, tuple):
                    yield found
                    continue
                found.result()
                ended += 1
                if len(self.generations) < len(self._planned):
                    self._start_next()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _names(request_id: str, answers: int) -> list[str]:
    return [request_id] if answers == 1 else [f"{request_id[:_LONGEST_ID]}-{n}" for n in range(answers)]


def fingerprint_of(client: PipelineClient) -> str:
    """Return what OpenAI's answers call `system_fingerprint`."""
    return "fp_" + hashlib.sha256(f"{client.model} {VERSION}".encode()).hexdigest()[:10]
