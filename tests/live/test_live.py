"""The live drivers: a whole pipeline over real sockets, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from flowedge.core.errors import (
    BadRequestError,
    CapacityError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    FlowEdgeError,
)
from flowedge.core.messages import Message, Segment
from flowedge.core.request import Failed, Finished, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.engine.activity import COMPUTING
from flowedge.engine.draft_node.cache_budget import UNLIMITED_ROWS, AdmissionLimits
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.executors.draft_models import DraftModels
from flowedge.engine.jobs import ForwardBatch, StageJob
from flowedge.engine.stage.stage import Stage
from flowedge.live import running_request
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.live_draft_node import LiveDraftNode
from flowedge.live.live_stage import LiveStage
from flowedge.live.running_request import RunningRequest
from flowedge.live.transport.frame_link import LinkEvents
from flowedge.live.transport.link import OutLink
from flowedge.live.transport.server import InStream, StreamOwner
from flowedge.live.work_timing import RealTime
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.taps import Taps, retained_values
from flowedge.network.link_settings import LinkSettings
from flowedge.planning.split import even_split, layer_ranges
from flowedge.protocol.link_kind import LinkKind
from flowedge_testbed.paced.express_faults import Delay, ExpressFault, parse_express_fault
from tests.support.breadth import dealt
from tests.support.links import serving_streams
from tests.support.loops import in_loop

# Generous: the machine that runs the tests may be busy with other things.
SETTINGS = LinkSettings(silence_s=60.0, upstream_silence_s=60.0, connect_s=60.0)
STAGES = 3
TOKENS = 24
TEST_S = 280.0


class Models:
    """The bundled model, cut into blocks, and a drafter."""

    def __init__(self, drafter: str = "bundled") -> None:
        checkpoint = Checkpoint.open("bundled")
        self.draft = DraftModels.load(checkpoint, (drafter,), "float32")
        self.ranges = layer_ranges(even_split(checkpoint.config.num_hidden_layers, STAGES))
        self.blocks = [LayerBlock.load(checkpoint, start, stop) for start, stop in self.ranges]
        assert self.draft.executor.drafter is not None
        self.taps = self.draft.executor.drafter.taps
        self.retained_values = retained_values(checkpoint.config.hidden_size, self.taps, self.ranges)


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


class StuckExecutor(BlockExecutor):
    """An executor that calls a test's function at each forward."""

    def __init__(self, block: LayerBlock, taps: Taps, at_forward: Callable[[], None]) -> None:
        super().__init__(block, taps)
        self._at_forward = at_forward

    def run(self, job: StageJob) -> Any:
        if isinstance(job, ForwardBatch):
            self._at_forward()
        return super().run(job)


class FaultyTime(RealTime):
    """Real time in which express messages are lost or late."""

    def __init__(self, compute: ComputeThread, fault: ExpressFault) -> None:
        super().__init__(compute)
        self._fault = fault

    def express_delay_s(self, message: Message) -> float | None:
        return self._fault.delay_s(message)


@contextlib.asynccontextmanager
async def live_pipeline(
    models: Models,
    fault: ExpressFault | None = None,
    progress_s: float = 60.0,
    at_forward: Callable[[], None] = lambda: None,
    total_rows: int = UNLIMITED_ROWS,
    kept_rows: int = 0,
) -> AsyncIterator[tuple[LiveDraftNode, list[LiveStage]]]:
    """The draft node and its stages, each with a server and a compute thread of its own.

    total_rows: what each stage has for all sessions, and the draft node goes by.
    """
    async with contextlib.AsyncExitStack() as stack:
        addresses: list[str] = []

        async def serve(name: str, owner: StreamOwner) -> None:
            serving = serving_streams(name, lambda _: owner, SETTINGS)
            addresses.append(await stack.enter_async_context(serving))

        def timing(name: str, fault: ExpressFault | None = None) -> RealTime:
            compute = ComputeThread(name)
            stack.callback(compute.stop, 1.0)
            return RealTime(compute) if fault is None else FaultyTime(compute, fault)

        stages: list[LiveStage] = []
        for index, block in enumerate(models.blocks):
            name = f"v{index + 1}"
            executor = StuckExecutor(block, models.taps, at_forward)
            machine = Stage(name, executor.stage_spec(max_total_capacity=total_rows))
            stages.append(LiveStage(machine, executor, timing(name), lambda reason: None))
            await serve(name, stages[-1])
        node = LiveDraftNode(
            models.draft.make_machine("d0", STAGES, models.taps, kept_rows=kept_rows),
            models.draft.executor,
            timing("d0", fault),
            progress_s=progress_s,
        )
        node.configure(node.spec, AdmissionLimits(total_rows=total_rows))
        await serve("d0", node)
        for stage, downstream in zip(stages, addresses[1:], strict=True):
            await stage.connect(partial(connect_link, stage.device, downstream, LinkKind.IN_BAND))
        await node.connect([addresses[:-1]], partial(open_link, "d0"))
        try:
            yield node, stages
        finally:
            await node.stop("the test is over")
            for stage in stages:
                await stage.stop("the test is over")


async def open_link(device: str, address: str, kind: LinkKind, events: LinkEvents) -> OutLink:
    return await OutLink.open(address, kind, pipeline="test", device=device, events=events, settings=SETTINGS)


connect_link = open_link  # of a stage to the next device


def request(
    session: str, strategy: str = "flowspec", max_new_tokens: int = TOKENS, **changes: Any
) -> Request:
    sampling = SamplingParams(temperature=0.7, top_p=0.95, seed=11)
    return Request(session, tuple(range(20, 45)), sampling, max_new_tokens, strategy=strategy, **changes)


def start(node: LiveDraftNode, asked: Request) -> RunningRequest:
    return node.start(node.prepare(asked))


async def result_of(node: LiveDraftNode, asked: Request) -> tuple[list[int], Finished]:
    generation = start(node, asked)
    tokens: list[int] = []
    try:
        while True:
            match await generation.next_output(120):
                case Tokens(token_ids=token_ids):
                    tokens.extend(token_ids)
                case Finished() as finished:
                    return tokens, finished
                case Failed(error=error):
                    raise error
                case None:
                    raise AssertionError("no output")
    finally:
        node.end(generation)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("fault", ["", "cut", "delay:0.03", "reorder:0.1"])
@in_loop(TEST_S)
async def test_every_strategy_gives_the_same_tokens_whatever_happens_to_express(
    models: Models, fault: str
) -> None:
    async with live_pipeline(models, parse_express_fault(fault)) as (node, stages):
        expected, plain = await result_of(node, request("plain", "autoregressive"))
        assert len(expected) == TOKENS
        for strategy in ("naive_pp", "auto"):
            tokens, finished = await result_of(node, request(strategy, strategy))
            assert tokens == expected
            assert finished.counters.prunes > 0
            assert [report.device for report in finished.reports] == ["d0", "v1", "v2", "v3"]
            assert all(report.busy_s > 0 and report.bytes_sent > 0 for report in finished.reports)
        assert plain.counters.prunes == 0
        await until(lambda: not any(stage.load().sessions for stage in stages))
        assert node.load().sessions == 0


@pytest.mark.parametrize("fault", dealt(("", "cut", "reorder:0.1"), "reorder:0.1".__eq__))
@in_loop(TEST_S)
async def test_kept_taps_come_when_rows_are_accepted(fault: str) -> None:
    models = Models("bundled-eagle3")
    assert len(models.retained_values) > 1
    async with live_pipeline(models, parse_express_fault(fault)) as (node, stages):
        expected, with_rows = await result_of(node, request("with-rows", "naive_pp"))
        node.configure(replace(node.spec, kept_taps=models.retained_values), AdmissionLimits())
        tokens, kept = await result_of(node, request("kept", "naive_pp"))
        assert tokens == expected
        accepted = with_rows.counters.accepted_per_round
        assert kept.counters.accepted_per_round == accepted, "the drafter proposed other trees"
        for before, after in zip(with_rows.reports[1:], kept.reports[1:], strict=True):
            assert after.bytes_sent < before.bytes_sent
        results = await asyncio.gather(*(result_of(node, request(f"s{i}", "auto")) for i in range(2)))
        assert [tokens for tokens, _ in results] == [expected] * 2
        await until(lambda: not any(stage.load().sessions for stage in stages))


@in_loop(TEST_S)
async def test_sessions_at_once_are_apart(models: Models) -> None:
    async with live_pipeline(models) as (node, _):
        expected, _ = await result_of(node, request("alone"))
        strategies = ("flowspec", "auto", "specpipe_db") * 2
        asked = [request(f"s{i}", strategy) for i, strategy in enumerate(strategies)]
        results = await asyncio.gather(*(result_of(node, each) for each in asked))
        assert [tokens for tokens, _ in results] == [expected] * 6


@in_loop(TEST_S)
async def test_sessions_wait_for_rows_on_the_stages_and_answer_as_alone(models: Models) -> None:
    """A stage would end a session beyond its rows with a Fault."""
    prepared = models.draft.make_machine("d0", STAGES, models.taps).prepare(request("x", "auto"))
    async with live_pipeline(models, total_rows=2 * prepared.capacity) as (node, stages):
        expected, _ = await result_of(node, request("alone", "autoregressive"))
        asked = [request(f"s{i}", ("auto", "autoregressive")[i % 2]) for i in range(6)]
        results = await asyncio.gather(*(result_of(node, each) for each in asked))
        assert [tokens for tokens, _ in results] == [expected] * len(asked)
        with pytest.raises(CapacityError, match="lower max_new_tokens by"):
            start(node, request("large", max_new_tokens=1500))
        await until(lambda: not any(stage.load().sessions for stage in stages))
        assert node.load().sessions == node.load().waiting == 0


@in_loop(TEST_S)
async def test_outputs_of_one_moment_are_handed_over_together_with_the_times_of_their_draws(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_request, "OUTPUT_PAUSE_S", 0.5)
    async with live_pipeline(models) as (node, _):
        running = start(node, request("grouped", "autoregressive"))
        groups = [await running.next_outputs(120)]
        while not isinstance(groups[-1][-1], Finished):
            groups.append(await running.next_outputs(120))
        node.end(running)
        drawn = [output for group in groups for output in group if isinstance(output, Tokens)]
        assert sum(len(tokens.token_ids) for tokens in drawn) == TOKENS
        assert all(before.drawn < after.drawn for before, after in pairwise(drawn))
        assert drawn[-1].drawn <= time.monotonic()
        assert len(groups) < TOKENS


@in_loop(TEST_S)
async def test_a_cancelled_session_leaves_nothing(models: Models) -> None:
    async with live_pipeline(models) as (node, stages):
        generation = start(node, request("gone", max_new_tokens=1000))
        assert isinstance(await generation.next_output(120), Tokens)
        node.end(generation)
        await until(lambda: not any(stage.load().sessions for stage in stages) and node.load().sessions == 0)
        assert len((await result_of(node, request("next")))[0]) == TOKENS


@in_loop(TEST_S)
async def test_a_device_that_computes_for_ever_is_given_up(models: Models) -> None:
    """The stage is alive, its heartbeats come, but its compute thread does not end a job."""
    sticks, release = threading.Event(), threading.Event()

    def stick() -> None:
        if sticks.is_set():
            release.wait(60)

    try:
        async with live_pipeline(models, progress_s=4.0, at_forward=stick) as (node, _):
            await result_of(node, request("before"))
            sticks.set()
            with pytest.raises(DeadlineError, match=r"device d0: .* for 4 s"):
                await result_of(node, request("stuck"))
            await until(lambda: node.lost is not None)  # nothing else has moved
            release.set()
            with pytest.raises(DeviceLostError, match=r"stands still: nothing came back for 4 s"):
                start(node, request("next"))
    finally:
        release.set()


@pytest.mark.parametrize(("others_s", "blamed"), [(0.4, "v3"), (2.0, "v2")])
@in_loop(TEST_S)
async def test_a_stage_that_hears_nobody_blames_its_own_network(
    models: Models, monkeypatch: pytest.MonkeyPatch, others_s: float, blamed: str
) -> None:
    async def noting(device: str, address: str, kind: LinkKind, events: LinkEvents) -> OutLink:
        owners[device] = events
        return await open_link(device, address, kind, events)

    owners: dict[str, LinkEvents] = {}
    monkeypatch.setattr(f"{__name__}.connect_link", noting)
    async with live_pipeline(models) as (node, _):
        running = start(node, request("lost", max_new_tokens=1000))
        assert isinstance(await running.next_output(120), Tokens)
        monkeypatch.setattr(InStream, "silent_s", others_s)
        error = DeviceLostError("v3", "no sign of life for 3 s")
        error.silence_s = 3.0
        owners["v2"].on_lost(error)
        await until(lambda: node.lost is not None)
        assert node.lost is not None and node.lost.device == blamed, node.lost
        node.end(running)


@pytest.mark.proof
@in_loop(TEST_S)
async def test_a_session_that_is_stuck_alone_harms_no_other(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage has lost a segment of one session, and goes on with those of another."""

    def lose(stage: LiveStage, stream: InStream, message: Message) -> None:
        if stage.device == "v2" and isinstance(message, Segment) and message.session == "stuck":
            lost.set()
        else:
            receive(stage, stream, message)

    receive, lost = LiveStage.received, threading.Event()
    monkeypatch.setattr(LiveStage, "received", lose)
    async with live_pipeline(models, progress_s=4.0) as (node, _):
        stuck = asyncio.create_task(result_of(node, request("stuck")))
        await until(lost.is_set)
        number = 0
        while not stuck.done():
            await result_of(node, request(f"good{number}", "autoregressive", max_new_tokens=4))
            number += 1
        with pytest.raises(DeadlineError, match="session stuck saw no message"):
            await stuck
        assert number and node.lost is None
        await result_of(node, request("last"))


@in_loop(TEST_S)
async def test_an_error_while_computing_names_the_device_and_harms_no_other_session(models: Models) -> None:
    failures = ["once"]

    def fail_once() -> None:
        if failures and failures.pop():
            raise RuntimeError("out of something")

    async with live_pipeline(models, at_forward=fail_once) as (node, _):
        with pytest.raises(DeviceError, match="out of something") as caught:
            await result_of(node, request("bad"))
        assert caught.value.device == "v1"
        assert len((await result_of(node, request("good")))[0]) == TOKENS


@in_loop(TEST_S)
async def test_requests_that_cannot_be_served_open_nothing(models: Models) -> None:
    async with live_pipeline(models) as (node, _):
        for bad in (
            request("a", max_new_tokens=10**6),
            request("b", "magic"),
            request("c", strategy_options={"no_such": 1.0}),
        ):
            with pytest.raises(FlowEdgeError):
                start(node, bad)
        assert node.load().sessions == 0


@pytest.mark.parametrize("text", ["x", "delay:", "delay:-1", "delay:nan", "cut:x"])
def test_an_express_fault_that_makes_no_sense_is_refused(text: str) -> None:
    if text == "delay:":
        assert parse_express_fault(text) == Delay(0.0)
        return
    with pytest.raises(BadRequestError, match="the express fault is "):
        parse_express_fault(text)


@in_loop(TEST_S)
async def test_timelines_tell_what_reports_count(models: Models) -> None:
    async with live_pipeline(models) as (node, stages):
        _, finished = await result_of(node, request("told", max_new_tokens=16))
        for report, timeline in zip(
            finished.reports, (node.timeline, *(stage.timeline for stage in stages)), strict=True
        ):
            events, dropped = timeline.of("told")
            assert dropped == 0
            computing = [event for event in events if event.kind in COMPUTING]
            # What ended after the session was closed here is told, and not in the report.
            assert report.busy_s <= sum(event.end - event.start for event in computing) * (1 + 1e-9)
            assert all(before.end <= after.start for before, after in pairwise(computing))
            if report.device == "d0":
                assert events[0].kind == "request"
                assert {"draft", "verify", "transfer"} <= {event.kind for event in events}
                continue
            whole = sum(event.rows for event in computing if event.kind in ("prefill", "forward"))
            aborted = [event.rows for event in computing if event.kind == "aborted"]
            assert whole <= report.rows_computed <= whole + sum(aborted)
            assert len(aborted) >= report.aborted
            assert 0 < sum(event.kind == "prune" for event in events) <= finished.counters.prunes
            assert sum(event.rows for event in events if event.kind == "transfer") <= report.rows_computed
        assert not stages[0].timeline.of("another")[0]
