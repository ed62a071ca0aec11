"""More requests than there is room for, over real agents: places, order, deadline, and ends of all kinds.

A stage that is stopped keeps sessions open for as long as a test needs; the devices are patient.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from flowedge import Client
from flowedge.client.sync import Generation
from flowedge.core.errors import CapacityError, FlowEdgeError
from flowedge.v1 import generation_pb2
from tests.cluster.raw_caller import raw_caller
from tests.support import waiting
from tests.support.processes import AgentProcess, FlowEdgeProcess, become_pipeline, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WAIT_S = 120.0
await_that = partial(waiting.await_that, seconds=WAIT_S)
LONG = 1900  # new tokens of a request that is not to end by itself; the model has 2,048 positions
PROMPT = "Tell me a long story about the sea."
CLIENT = f"""
import sys
from flowedge import Client
options = dict(max_new_tokens={LONG}, ignore_eos=True, strategy="autoregressive")
Client(sys.argv[1], timeout_s=250).generate({PROMPT!r}, **options).result()
"""
PATIENT = {"silence_s": 200.0, "upstream_silence_s": 200.0, "progress_s": 200.0, "send_s": 200.0}


@dataclass
class Cluster:
    """A draft node and two stages, the last of which has the fewest sessions."""

    draft_node: AgentProcess
    stages: list[AgentProcess]

    @contextmanager
    def first_stage_stopped(self) -> Iterator[None]:
        """Nothing comes through the pipeline while the context lasts."""
        self.stages[0].signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.stages[0].signal(signal.SIGCONT)

    def await_empty(self, *stages: AgentProcess) -> None:
        """Wait until stages hold nothing of any session, by their own counters."""
        for stage in stages:
            await_that(lambda stage=stage: stage.samples()["flowedge_sessions"] == 0)  # type: ignore[misc]
            await_that(lambda stage=stage: stage.samples()["flowedge_kv_cache_bytes"] == 0)  # type: ignore[misc]
            assert stage.describe().cache_bytes == 0

    def await_waiting(self, number: int) -> None:
        await_that(lambda: self.draft_node.samples()["flowedge_queue_requests"] == number)

    def refused(self, reason: str) -> float:
        name = f'flowedge_requests_refused_total{{reason="{reason}"}}'
        return self.draft_node.samples().get(name, 0.0)


@contextmanager
def started(sessions: int, **deadlines: float) -> Iterator[Cluster]:
    settings = {"deadlines": {**PATIENT, "read_s": 3.0, **deadlines}}
    last = {**settings, "limits": {"sessions": sessions}}
    of_draft_node = {**settings, "limits": {"queued_requests": 3, "kept_rows": 0}}
    made = [
        AgentProcess(name, "--no-advertise", settings=of_agent)
        for name, of_agent in (("d0", of_draft_node), ("v1", settings), ("v2", last))
    ]
    with running(*made):
        become_pipeline(made)
        yield Cluster(made[0], made[1:])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with started(sessions=2, queue_s=250.0) as made:
        yield made


@dataclass
class AnswerRequest:
    """A request whose answer a thread reads.

    Attributes:
        places: what the client was told of its place in the queue; error: what ended the answer.
    """

    generation: Generation
    places: list[int] = field(default_factory=list)
    error: FlowEdgeError | None = None

    @classmethod
    def of(cls, client: Client, name: str, tokens: int = LONG, **options: Any) -> AnswerRequest:
        places: list[int] = []
        generation = client.generate(
            PROMPT,
            max_new_tokens=tokens,
            ignore_eos=True,
            request_id=name,
            on_waiting=lambda position, _: places.append(position),
            **options,
        )
        asked = cls(generation, places)
        asked.thread.start()
        return asked

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        try:
            self.generation.result()
        except FlowEdgeError as error:
            self.error = error

    @property
    def is_open(self) -> bool:
        return self.generation.seed is not None

    def await_end(self) -> None:
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


def fill(client: Client, *names: str) -> list[AnswerRequest]:
    """Requests that are open and go on."""
    asked = [AnswerRequest.of(client, name, strategy="autoregressive") for name in names]
    await_that(lambda: all(each.is_open for each in asked))
    return asked


@pytest.mark.proof
def test_the_others_wait_in_the_order_of_priorities_and_answer_as_alone(cluster: Cluster) -> None:
    with Client(cluster.draft_node.address, timeout_s=250) as client:
        alone = client.generate(PROMPT, max_new_tokens=20, ignore_eos=True).result().token_ids
        seen = len(cluster.draft_node.lines)
        with cluster.first_stage_stopped():
            first = [AnswerRequest.of(client, name, 20) for name in ("order-a", "order-b")]
            await_that(lambda: all(each.is_open for each in first))
            asked = []
            for number, (name, priority) in enumerate(
                [("order-c", "batch"), ("order-d", "normal"), ("order-e", "interactive")], 1
            ):
                asked.append(AnswerRequest.of(client, name, 20, priority=priority))
                cluster.await_waiting(number)
            await_that(lambda: [each.places for each in asked] == [[1, 2, 3], [1, 2], [1]])
            before = cluster.refused("queue_full")
            full = AnswerRequest.of(client, "order-f", 20, priority="batch")
            full.await_end()
            assert isinstance(full.error, CapacityError)
            assert "3 requests wait for device d0 already; try later, in about" in str(full.error)
            assert full.error.retry_after_s is not None and full.error.retry_after_s > 0
            assert cluster.refused("queue_full") == before + 1
        for each in [*first, *asked]:
            each.await_end()
            assert each.error is None
            assert each.generation.token_ids == alone
    opened = [line for line in cluster.draft_node.lines[seen:] if "a session was opened" in line]
    order = [name for line in opened for name in ("a", "b", "c", "d", "e") if f"request=order-{name}" in line]
    assert (set(order[:2]), order[2:]) == ({"a", "b"}, ["e", "d", "c"])
    for each in asked:
        statistics = each.generation.statistics
        assert statistics["queue_s"] == each.generation.queue_s > 0
        assert statistics["total_s"] > statistics["queue_s"] + statistics["ttft_s"] - 1e-6
    cluster.await_empty(*cluster.stages)


def test_a_cancelled_request_frees_all_stages_at_once(cluster: Cluster) -> None:
    """Also the stage behind the one that passes nothing on."""
    with Client(cluster.draft_node.address, timeout_s=250) as client:
        opened = cluster.stages[1].samples()["flowedge_sessions_opened_total"]
        first = fill(client, "cancel-a", "cancel-b")
        await_that(lambda: cluster.stages[1].samples()["flowedge_sessions"] == 2)
        with cluster.first_stage_stopped():
            waiting = [AnswerRequest.of(client, name) for name in ("cancel-c", "cancel-d")]
            cluster.await_waiting(2)
            assert cluster.stages[1].describe().cache_bytes > 0
            before = cluster.refused("cancelled")
            for each in waiting:
                each.generation.close()
            cluster.await_waiting(0)
            await_that(lambda: cluster.refused("cancelled") == before + 2)
            for each in first:
                each.generation.close()
            cluster.await_empty(cluster.stages[1])
        cluster.await_empty(cluster.stages[0])
        for each in [*first, *waiting]:
            each.await_end()
            assert each.generation.finish_reason == "cancelled"
        assert cluster.stages[1].samples()["flowedge_sessions_opened_total"] == opened + 2
        await_that(lambda: cluster.draft_node.samples()["flowedge_sessions"] == 0)


def test_the_room_of_a_cancelled_request_is_the_next_ones(cluster: Cluster) -> None:
    with Client(cluster.draft_node.address, timeout_s=250) as client:
        with cluster.first_stage_stopped():
            first = fill(client, "next-a", "next-b")
            waiting = AnswerRequest.of(client, "next-c", 10)
            await_that(lambda: waiting.places == [1])
            first[0].generation.close()
            await_that(lambda: waiting.is_open)
        first[1].generation.close()
        waiting.await_end()
        assert waiting.generation.finish_reason == "length"
    cluster.await_empty(*cluster.stages)


def test_the_sessions_of_killed_clients_are_dropped(cluster: Cluster) -> None:
    command = [sys.executable, "-c", CLIENT]
    clients = [FlowEdgeProcess(cluster.draft_node.address, command=command) for _ in range(3)]
    seen = len(cluster.draft_node.lines)
    try:
        for client in clients[:2]:
            client.start()
        await_that(lambda: cluster.stages[1].samples()["flowedge_sessions"] == 2)
        with cluster.first_stage_stopped():
            clients[2].start()
            cluster.await_waiting(1)
            for client in clients:
                client.signal(signal.SIGKILL)
            cluster.await_waiting(0)
            cluster.await_empty(cluster.stages[1])
    finally:
        for client in clients:
            client.kill()
            client.remove()
    cluster.draft_node.line("a session has ended", "the client went away", after=seen)
    await_that(lambda: cluster.draft_node.samples()["flowedge_sessions"] == 0)
    cluster.await_empty(*cluster.stages)


@pytest.mark.proof
def test_the_session_of_a_client_that_reads_nothing_is_dropped(cluster: Cluster) -> None:
    request = generation_pb2.GenerateRequest(
        prompt=PROMPT, options=json.dumps({"max_new_tokens": LONG, "ignore_eos": True})
    )
    seen = len(cluster.draft_node.lines)
    with raw_caller(cluster.draft_node.address, None, reply_window=0, plaintext=True) as caller:
        caller.request("/flowedge.v1.Generation/Generate", request.SerializeToString())
        cluster.draft_node.line("a session has ended", "the caller read no reply", after=seen)
        cluster.await_empty(*cluster.stages)
    await_that(lambda: cluster.draft_node.samples()["flowedge_sessions"] == 0)


def test_a_request_that_waits_too_long_is_told_when_to_try_again() -> None:
    with (
        started(sessions=1, queue_s=0.5) as cluster,
        Client(cluster.draft_node.address, timeout_s=250) as client,
        cluster.first_stage_stopped(),
    ):
        (first,) = fill(client, "late-a")
        late = AnswerRequest.of(client, "late-b")
        late.await_end()
        assert late.places == [1]
        assert isinstance(late.error, CapacityError)
        assert "device d0 had no room for the request within 0.5 s; try later, in about" in str(late.error)
        assert late.error.retry_after_s is not None and late.error.retry_after_s > 0
        assert cluster.refused("capacity") == 1
        assert first.error is None
        first.generation.close()
