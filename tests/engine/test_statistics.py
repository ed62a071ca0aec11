"""The times of a request: what it waited for room is told apart from what its first token took."""

from __future__ import annotations

import json

import pytest

from flowedge.client.transcript import typed_statistics
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import StageReport
from flowedge.core.request import DecodeCounters, Finished
from flowedge.engine.statistics import RequestClock, RequestStatistics
from tests.engine.draft_node.draft_node_loop import request


def statistics(tokens: int) -> RequestStatistics:
    """Of a request that arrived at 10 s, waited for 3 s, and had its first token at 14 s."""
    clock = RequestClock(10.0)
    clock.queue_s = 3.0
    assert clock.ttft_s is None
    if tokens:
        assert clock.count(1, 14.0) == 1.0
        assert clock.ttft_s == 1.0
        assert clock.count(tokens - 1, 14.5) == 0.5
    reports = (StageReport("d0"), StageReport("v1", busy_s=1.0))
    return clock.statistics(15.0, request(), Finished("s", "length", "", DecodeCounters(), reports), 0)


def test_the_wait_is_in_the_whole_time_alone() -> None:
    found = statistics(tokens=3)
    assert (found.queue_s, found.ttft_s, found.decode_s, found.total_s) == (3.0, 1.0, 0.5, 5.0)
    assert (found.tokens_per_s, found.itl_s) == (4.0, (0.5, 0.0)), "of the tokens after the first"
    assert found.stages[0].use == 0.5, "of the time without the wait"
    assert statistics(tokens=0).ttft_s == 2.0


def test_a_client_reads_the_wait_and_refuses_an_impossible_one() -> None:
    content = json.loads(statistics(tokens=2).to_json())
    assert typed_statistics(content).queue_s == 3.0
    with pytest.raises(ProtocolError, match=r"queue_s of -1\.0"):
        typed_statistics({**content, "queue_s": -1.0})
