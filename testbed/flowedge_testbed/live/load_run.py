"""A load on agents: clients that ask at their time, and what the devices' timelines say of all requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from flowedge.client.aio import AsyncClient
from flowedge.client.transcript import typed_statistics
from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.engine.statistics import RequestStatistics
from flowedge.live.timeline import MAX_SESSIONS
from flowedge.planning.virtual_pipeline import DRAFT_NODE
from flowedge_testbed.live.live_run import ANSWER_S, arrival_of, generate_arguments, trace_of
from flowedge_testbed.live.timelines import fetch_timelines
from flowedge_testbed.load.arrivals import LEAST_WAIT_S, Arrival, Arrivals, LoadAnswer
from flowedge_testbed.load.load_plan import LoadRun, LoadTask
from flowedge_testbed.load.load_record import LoadRecord, load_record
from flowedge_testbed.trace import Trace


@dataclass(frozen=True)
class LiveAnswer:
    """A complete answer of an agent: its session there, its tokens and the draft node's statistics."""

    arrival: Arrival
    session: str
    tokens: tuple[int, ...]
    statistics: RequestStatistics


def run_live_load(
    draft_node: str, stages: Sequence[str], task: LoadTask, load: LoadRun
) -> tuple[LoadRecord, Trace]:
    """Carry out a load point on a ready pipeline of these agents.

    Times are those of the draft node, from a request's arrival there, without the caller's link. A batch that
    begins later adds what its requests waited for it here.

    Raises:
        FlowEdgeError: when a request fails, or when every counted request finds no room.
        BadRequestError: when the load has more requests than devices keep the timelines of.
    """
    most = load.counted.stop + (int(load.point.value) if load.point.kind == "clients" else 0)
    if most >= MAX_SESSIONS:
        raise BadRequestError(
            f"a load of up to {most} requests is too long for agents, which keep the timelines of "
            f"{MAX_SESSIONS}; lower load.requests, load.warm_up or load.clients"
        )
    clients = _LiveClients(draft_node, task, load)
    asyncio.run(clients.run())
    answers = {refused.number: LoadAnswer(refused, 0, refused=True) for refused in clients.refused}
    whole, places = Trace(), range(DRAFT_NODE, len(stages))
    for answer in clients.answers:
        number, statistics = answer.arrival.number, answer.statistics
        timelines = fetch_timelines([draft_node, *stages], answer.session)
        arrived = arrival_of(timelines) - clients.began
        opened = arrived + statistics.queue_s
        part = trace_of(timelines, statistics.link_bytes.get("express", 0), places, clients.began, number)
        whole.intervals += part.intervals
        whole.prunes += part.prunes
        whole.express_bytes += part.express_bytes
        whole.uncertainty_s = max(whole.uncertainty_s, part.uncertainty_s)
        waited = answer.arrival.begins - answer.arrival.asked
        answers[number] = LoadAnswer(
            Arrival(number, arrived - waited, arrived),
            statistics.prompt_tokens,
            list(answer.tokens),
            list(accumulate(statistics.itl_s, initial=opened + statistics.ttft_s)),
            arrived + statistics.total_s,
            opened,
        )
    return load_record(answers, load.counted, whole, places), whole


class _LiveClients:
    """The clients of a load, on one event loop. Times of arrivals are seconds since they began.

    Attributes:
        began: the time.monotonic() at which the load began.
        answers: that are complete; refused: the requests for which there was no room.
    """

    def __init__(self, draft_node: str, task: LoadTask, load: LoadRun) -> None:
        self._draft_node = draft_node
        self._requests = task.requests
        self._load = load
        self._arrivals: Arrivals = load.arrivals(task.requests)
        self._left = set(load.counted)
        self._asking: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()  # those of `_asking` that have not begun
        self.answers: list[LiveAnswer] = []
        self.refused: list[Arrival] = []
        self.began = 0.0

    async def run(self) -> None:
        """Ask until the counted requests are answered or refused, and those that were asked by then."""
        async with AsyncClient(self._draft_node, timeout_s=ANSWER_S) as client:
            self.began = time.monotonic()
            self._start(client, self._arrivals.first())
            try:
                while self._asking:
                    done, _ = await asyncio.wait(self._asking, return_when=asyncio.FIRST_COMPLETED)
                    self._asking -= done
                    for task in done:
                        if not task.cancelled():
                            task.result()
            finally:
                for task in self._asking:
                    task.cancel()
                await asyncio.gather(*self._asking, return_exceptions=True)

    def _start(self, client: AsyncClient, arrivals: Sequence[Arrival]) -> None:
        """Start requests, as long as a counted answer is not complete."""
        if self._left:
            for arrival in arrivals:
                task = asyncio.create_task(self._ask(client, arrival))
                self._asking.add(task)
                self._waiting.add(task)

    async def _ask(self, client: AsyncClient, arrival: Arrival) -> None:
        await asyncio.sleep(max(self.began + arrival.begins - time.monotonic(), 0.0))
        self._waiting.discard(_own_task())
        self._start(client, self._arrivals.begun(arrival))
        asked, run = self._requests.request(arrival.number), self._load.run
        answer = client.generate(**generate_arguments(run, asked))
        try:
            await answer.result()
        except CapacityError as error:
            if error.retry_after_s is None:
                raise
            self.refused.append(arrival)
            wait = max(error.retry_after_s, LEAST_WAIT_S)
        else:
            wait = 0.0
            statistics = typed_statistics(answer.statistics)
            self.answers.append(LiveAnswer(arrival, answer.session, tuple(answer.token_ids), statistics))
        ended = time.monotonic() - self.began + wait
        self._left.discard(arrival.number)
        self._start(client, self._arrivals.ended(arrival.number, ended))
        if not self._left:
            for task in self._waiting:
                task.cancel()
            self._waiting.clear()


def _own_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None  # this runs in one
    return task
