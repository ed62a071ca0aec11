"""What a device adds to the computing of a segment, read off rehearsals."""

from __future__ import annotations

import asyncio
import queue
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from flowedge.core.messages import Message, Segment
from flowedge.engine.activity import DRAFT, FORWARD, PREFILL, VERIFY
from flowedge.live.transport.frame_link import FrameLink, LinkEvents
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.live.transport.server import InStream, StreamOwner
from flowedge.planning.measuring.recorded_work import (
    RecordedJob,
    RecordedSegment,
    connected_pair,
    serve_stream,
)
from flowedge.planning.measuring.rehearsal import Rehearsed, rehearse
from flowedge.planning.profile.device import AddedTimes, StrategyTimes
from flowedge.planning.profile.measurement import short
from flowedge.protocol.frame_bounds import CONTROL_BYTES, FrameError
from flowedge.protocol.link_kind import LinkKind
from flowedge.strategies.autoregressive import Autoregressive

PLAIN = Autoregressive.name
PLAIN_TOKENS = 100  # of the request that shows the times of a segment
STRATEGY_TOKENS = 60  # of each strategy's request
LARGE_ROWS, LARGE_WIDTH = 128, 4096  # 1 MiB in 16 bits
HOPS = 30
HOP_S = 10.0  # for one message


def measure_added_times(
    width: int, dtype: str, strategies: Collection[str], tell: Callable[[str], None]
) -> AddedTimes:
    """Measure what this device adds to the computing of a segment, in each role.

    Args:
        width, dtype: of the hidden states; numpy's name of the dtype.
        strategies: that are rehearsed; plain decoding is one of them.
        tell: called with what is measured next; an exception of it ends the measurement.

    Raises:
        FlowEdgeError: when a rehearsal fails.
    """
    rehearsed = rehearse(
        dict.fromkeys(strategies, STRATEGY_TOKENS) | {PLAIN: PLAIN_TOKENS},
        width,
        dtype,
        tell=lambda strategy: tell(f"what surrounds computing, {strategy}"),
    )
    plain = rehearsed[PLAIN]
    strategies = {name: _strategy_times(found) for name, found in rehearsed.items()}
    return AddedTimes(
        receive_ms=_milliseconds(receiving_s(plain)),
        send_ms=_milliseconds(sending_s(plain)),
        mib_ms=_milliseconds([asyncio.run(_mib_s())]),
        strategies=strategies,
    )


def receiving_s(plain: Rehearsed) -> list[float]:
    """Return the seconds from the end of a segment's writing until it is computed, on both devices."""
    forwards = [each for each in plain.stage_jobs if each.activity in (FORWARD, PREFILL)]
    verified = [each for each in plain.draft_jobs if each.activity == VERIFY]
    return [
        *_between(plain.draft_segments[-len(verified) :], forwards[-len(verified) :]),
        *_between(plain.stage_segments[-len(verified) :], verified),
    ]


def _between(written: Sequence[RecordedSegment], jobs: Sequence[RecordedJob]) -> list[float]:
    return [job.start - segment.written for segment, job in zip(written, jobs, strict=True)]


def sending_s(plain: Rehearsed) -> list[float]:
    """Return the seconds from the end of a forward until its rows are written."""
    forwards = [each for each in plain.stage_jobs if each.activity in (FORWARD, PREFILL)]
    return [segment.written - job.end for job, segment in zip(forwards, plain.stage_segments, strict=True)]


def _strategy_times(found: Rehearsed) -> StrategyTimes:
    written = [segment.written for segment in found.draft_segments]
    verified = [_first_within(written, job) - job.end for job in found.draft_jobs if job.activity == VERIFY]
    drafted = [job.concluded - job.end for job in found.draft_jobs if job.activity == DRAFT]
    return StrategyTimes(
        verified_ms=_milliseconds(verified), drafted_ms=_milliseconds(drafted) if drafted else 0.0
    )


def _first_within(written: Sequence[float], job: RecordedJob) -> float:
    """Return when the first segment was written that followed from a job; its conclusion if none did."""
    place = bisect_left(written, job.end)
    return min(written[place], job.concluded) if place < len(written) else job.concluded


def _milliseconds(seconds: Sequence[float]) -> float:
    return short(1e3 * max(statistics.median(seconds), 0.0))


class _Arrivals(StreamOwner):
    """Notes when messages have been read."""

    def __init__(self) -> None:
        self.times: queue.SimpleQueue[float] = queue.SimpleQueue()

    def opened(self, stream: InStream) -> None:
        stream.max_frame_bytes = 4 * LARGE_ROWS * LARGE_WIDTH

    def received(self, stream: InStream, message: Message) -> None:  # noqa: ARG002
        self.times.put(time.monotonic())

    def malformed(self, stream: InStream, error: FrameError) -> None:
        """See StreamOwner."""

    def closed(self, stream: InStream, reason: str) -> None:
        """See StreamOwner."""


async def _mib_s() -> float:
    """Return the seconds by which 1 MiB of rows delays a segment between two connections of this device."""
    arrivals, (near, far) = _Arrivals(), connected_pair()
    receiving = serve_stream(arrivals, LinkKind.IN_BAND, "sender", far)
    events = LinkEvents(lambda _: None, lambda _: None)
    link = FrameLink(LinkConnection.over(near, CONTROL_BYTES), "receiver", events, LinkKind.IN_BAND)

    def hops(rows: int) -> Iterator[float]:
        segment = _segment(rows)
        for _ in range(HOPS):
            started = time.monotonic()
            link.send(segment)
            yield arrivals.times.get(timeout=HOP_S) - started

    try:
        small, large = (statistics.median(hops(rows)) for rows in (1, LARGE_ROWS))
    finally:
        await link.close()
        receiving.close()
    return max(0.0, large - small) * (1 << 20) / ((LARGE_ROWS - 1) * LARGE_WIDTH * 2)


def _segment(rows: int) -> Segment:
    positions = np.arange(rows, dtype=np.int64)
    payload = np.zeros((rows, LARGE_WIDTH), dtype=np.uint16)
    return Segment("hop", 0, 0, True, 0, positions, positions - 1, payload)
