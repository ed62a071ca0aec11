"""A pipeline of a draft node in this process and a stage in another one, whose drivers are the product's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flowedge.core.request import Failed, Finished, Request
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.live_draft_node import LiveDraftNode
from flowedge.live.transport.frame_link import FrameLink, LinkEvents
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.live.work_timing import RealTime
from flowedge.planning.measuring.recorded_work import (
    RecordedJob,
    RecordedSegment,
    RecordedWork,
    connected_pair,
    serve_stream,
)
from flowedge.planning.measuring.scripted_models import DiceDraft, SilentText
from flowedge.planning.measuring.stage_process import StageProcess, StageRecord
from flowedge.protocol.frame_bounds import CONTROL_BYTES
from flowedge.protocol.link_kind import LinkKind
from flowedge.strategies.registry import make_strategy

PROMPT = 256  # tokens
OUTPUT_S = 20.0  # for an output of a request
STOP_S = 1.0


@dataclass(frozen=True)
class WaitedTimes:
    """The times that the models of a rehearsal wait for, in seconds."""

    forward_s: float = 0.004
    draft_s: float = 0.001
    verify_s: float = 0.0003


@dataclass(frozen=True)
class Rehearsed:
    """What both devices did for one request, in the order in which it ended."""

    draft_jobs: tuple[RecordedJob, ...]
    draft_segments: tuple[RecordedSegment, ...]
    stage_jobs: tuple[RecordedJob, ...]
    stage_segments: tuple[RecordedSegment, ...]


class _Rehearsal:
    """The pipeline at work, made on a running event loop."""

    def __init__(self, width: int, dtype: str, times: WaitedTimes) -> None:
        self._ends = [connected_pair() for _ in range(3)]  # express, to the stage, and back
        theirs = [far for _, far in self._ends]
        self._stage = StageProcess(width, dtype, times.forward_s, theirs)
        for end in theirs:
            end.close()
        self._compute = ComputeThread("d0")
        self.work = RecordedWork()
        machine = DraftNode(
            "d0",
            DraftNodeSpec(width, dtype, prefill_rows=PROMPT // 2),
            lambda request: make_strategy(request.strategy, request.strategy_options),
            SilentText,
        )
        draft = DiceDraft(times.draft_s, times.verify_s)
        self._node = LiveDraftNode(
            machine, draft, RealTime(self._compute), progress_s=OUTPUT_S, observer=self.work
        )

    async def connect(self) -> None:
        express, outward, inward = (near for near, _ in self._ends)
        own = {LinkKind.EXPRESS: express, LinkKind.IN_BAND: outward}

        async def to_stage(_address: str, kind: LinkKind, events: LinkEvents) -> FrameLink:
            return FrameLink(LinkConnection.over(own[kind], CONTROL_BYTES), "v1", events, kind)

        serve_stream(self._node, LinkKind.IN_BAND, "v1", inward)
        await self._node.connect([["v1"]], to_stage)

    async def answer(self, strategy: str, new_tokens: int) -> tuple[float, float]:
        """Have a request answered; return when that began and ended."""
        began = time.monotonic()
        request = Request(
            strategy, tuple(range(PROMPT)), SamplingParams(), new_tokens, strategy=strategy, noise="plain"
        )
        running = self._node.start(self._node.prepare(request))
        try:
            while True:
                output = await running.next_output(OUTPUT_S)
                if isinstance(output, Failed):
                    raise output.error
                if output is None or isinstance(output, Finished):
                    return began, time.monotonic()
        finally:
            self._node.end(running)

    async def stop(self) -> StageRecord:
        await self._node.stop("the rehearsal is over")
        self._compute.stop(STOP_S)
        return self._stage.end()


def rehearse(
    requests: Mapping[str, int],
    width: int,
    dtype: str,
    times: WaitedTimes = WaitedTimes(),
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Rehearsed]:
    """Have a pipeline answer requests, one after the other; must be called where no event loop is running.

    Args:
        requests: the number of new tokens for each strategy.
        width, dtype: of the hidden states that the stage sends; numpy's name of the dtype.
        tell: called with the name of each strategy; an exception of it ends the rehearsal.

    Raises:
        FlowEdgeError: when a request fails, or the stage's process does.
    """
    return asyncio.run(_rehearse(requests, width, dtype, times, tell))


async def _rehearse(
    requests: Mapping[str, int], width: int, dtype: str, times: WaitedTimes, tell: Callable[[str], None]
) -> dict[str, Rehearsed]:
    rehearsal = _Rehearsal(width, dtype, times)
    spans = {}
    try:
        await rehearsal.connect()
        for strategy, new_tokens in requests.items():
            tell(strategy)
            spans[strategy] = await rehearsal.answer(strategy, new_tokens)
    finally:
        stage = await rehearsal.stop()
    own = rehearsal.work
    return {strategy: _within(span, own.jobs, own.segments, stage) for strategy, span in spans.items()}


def _within(
    span: tuple[float, float],
    jobs: Sequence[RecordedJob],
    segments: Sequence[RecordedSegment],
    stage: StageRecord,
) -> Rehearsed:
    begun, ended = span

    def jobs_of(done: Sequence[RecordedJob]) -> tuple[RecordedJob, ...]:
        return tuple(job for job in done if begun <= job.end <= ended)

    def segments_of(sent: Sequence[RecordedSegment]) -> tuple[RecordedSegment, ...]:
        return tuple(segment for segment in sent if begun <= segment.written <= ended)

    return Rehearsed(jobs_of(jobs), segments_of(segments), jobs_of(stage.jobs), segments_of(stage.segments))
