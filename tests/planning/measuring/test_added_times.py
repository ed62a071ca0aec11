"""What a device adds to computing is measured by the product's drivers."""

from __future__ import annotations

import statistics

import pytest

from flowedge.engine.activity import FORWARD, PREFILL, VERIFY
from flowedge.planning.measuring import added_times
from flowedge.planning.measuring.added_times import measure_added_times, receiving_s, sending_s
from flowedge.planning.measuring.rehearsal import Rehearsed, WaitedTimes, rehearse
from flowedge.planning.profile.device import AddedTimes, StrategyTimes

TIMES = WaitedTimes(forward_s=0.002, draft_s=0.001, verify_s=0.001)
TOKENS = 12


@pytest.fixture(scope="module")
def rehearsed() -> dict[str, Rehearsed]:
    return rehearse({"autoregressive": TOKENS, "auto": TOKENS}, 8, "float32", TIMES)


def test_a_rehearsal_runs_a_request_through_both_drivers(rehearsed: dict[str, Rehearsed]) -> None:
    plain = rehearsed["autoregressive"]
    assert [each.activity for each in plain.stage_jobs if each.activity == PREFILL] == [PREFILL] * 2
    forwards = [each for each in plain.stage_jobs if each.activity == FORWARD]
    assert len(forwards) == TOKENS - 1
    assert [each.rows for each in plain.stage_segments[2:]] == [1] * (TOKENS - 1)
    assert sum(each.activity == VERIFY for each in plain.draft_jobs) == TOKENS
    for each in (*forwards, *plain.draft_jobs):
        assert each.start <= each.end <= each.concluded
    assert all(each.end - each.start >= TIMES.forward_s for each in forwards)


def test_times_are_between_the_jobs_and_the_segments(rehearsed: dict[str, Rehearsed]) -> None:
    plain = rehearsed["autoregressive"]
    assert len(receiving_s(plain)) == 2 * TOKENS
    assert statistics.median(receiving_s(plain)) > 0
    assert len(sending_s(plain)) == TOKENS + 1
    assert all(seconds > 0 for seconds in sending_s(plain))


def test_requests_are_told_apart_and_drafting_ones_send_trees(rehearsed: dict[str, Rehearsed]) -> None:
    drafting, plain = rehearsed["auto"], rehearsed["autoregressive"]
    assert any(segment.rows > 1 for segment in drafting.draft_segments[2:])
    assert plain.draft_jobs[-1].end <= drafting.draft_jobs[0].start


def test_every_strategy_has_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(added_times, "STRATEGY_TOKENS", TOKENS)
    monkeypatch.setattr(added_times, "PLAIN_TOKENS", TOKENS)
    told: list[str] = []
    found = measure_added_times(8, "float32", ("autoregressive", "flowspec"), told.append)
    assert set(found.strategies) == {"autoregressive", "flowspec"}
    assert found.strategies["autoregressive"].drafted_ms == 0 < found.strategies["flowspec"].drafted_ms
    assert all(times.verified_ms > 0 for times in found.strategies.values())
    assert found.send_ms > 0
    assert len(told) == 2


def test_the_times_of_a_strategy_that_was_not_measured_are_the_largest() -> None:
    both = {
        "a": StrategyTimes(verified_ms=1, drafted_ms=4),
        "b": StrategyTimes(verified_ms=2, drafted_ms=3),
    }
    added = AddedTimes(receive_ms=0, send_ms=0, mib_ms=0, strategies=both)
    assert added.of("b") == both["b"]
    assert added.of("c") == StrategyTimes(verified_ms=2, drafted_ms=4)
    alone = added.model_copy(update={"strategies": {}})
    assert alone.of("c") == StrategyTimes(verified_ms=0, drafted_ms=0)
