"""The figures of a load point against a schedule that is worked out by hand."""

from __future__ import annotations

import json

import pytest

from flowedge.core.errors import CapacityError, DeadlineError
from flowedge.engine.activity import ABORTED, DRAFT, FORWARD, PREFILL, TRANSFER
from flowedge_testbed.load.arrivals import Arrival, LoadAnswer
from flowedge_testbed.load.load_record import LoadRecord, charted_part, charted_span, load_record
from flowedge_testbed.load.load_results import Fairness
from flowedge_testbed.load.pipeline_use import PipelineUse, mean_of_counts, quantile_of, row_shares
from flowedge_testbed.trace import Interval, PruneMark, Trace

# Two sessions, a draft node and two stages, ten seconds. Session 0 is warm-up.
INTERVALS = [
    Interval(0, PREFILL, 0.0, 1.0, 7, session=0),
    Interval(1, PREFILL, 1.0, 2.0, 7, session=0),
    Interval(0, PREFILL, 2.0, 3.0, 5, session=1),
    Interval(1, PREFILL, 3.0, 4.0, 5, session=1),
    # One forward of both sessions on either stage, of 1 and of 3 rows.
    Interval(0, FORWARD, 5.0, 6.0, 1, session=0),
    Interval(0, FORWARD, 5.0, 6.0, 3, session=1),
    Interval(1, FORWARD, 6.0, 7.0, 1, session=0),
    Interval(1, FORWARD, 6.0, 7.0, 3, session=1),
    Interval(0, ABORTED, 7.0, 7.5, 9, session=1),
    # Alone, since session 0 has put out its last token by then.
    Interval(0, FORWARD, 8.0, 9.0, 2, session=1),
    Interval(-1, DRAFT, 4.0, 5.5, 1, session=1),
    Interval(-1, DRAFT, 9.0, 10.0, 1, session=1),
    Interval(-1, TRANSFER, 0.0, 10.0, 1, session=1),
]


def answers() -> dict[int, LoadAnswer]:
    warm_up = LoadAnswer(Arrival(0, 0.0, 0.0), 7, [4, 5], [2.0, 7.0], 7.5)
    counted = LoadAnswer(Arrival(1, 0.5, 1.0), 5, [6, 7, 8, 9], [4.0, 7.0, 7.0, 10.0], 10.5)
    running = LoadAnswer(Arrival(2, 9.5, 9.5), 5, [6], [9.9], None)
    return {0: warm_up, 1: counted, 2: running}


def record() -> LoadRecord:
    return load_record(answers(), range(1, 2), Trace(INTERVALS), range(-1, 2))


def test_the_times_of_an_answer() -> None:
    (served,) = record().requests
    assert (served.number, served.prompt_tokens, served.new_tokens) == (1, 5, 4)
    assert (served.asked_s, served.ttft_s, served.latency_s) == (0.5, 3.5, 9.5)
    assert served.queued_s == 1.5, "until the first stage began its prompt"
    assert served.itl_s == (3.0, 0.0, 3.0), "two tokens of one event are 0 apart"
    assert served.tokens_per_s == pytest.approx(3 / 6)
    assert served.admitted_s == 0.5, "when its batch began"


def test_refused_requests_are_counted_and_nothing_else() -> None:
    refused = LoadAnswer(Arrival(2, 1.0, 1.0), 5, refused=True)
    found = load_record({**answers(), 2: refused}, range(1, 3), Trace(INTERVALS), range(-1, 2))
    assert found.refused == 1
    assert (found.requests, found.window) == (record().requests, record().window)
    assert record().refused == 0
    with pytest.raises(CapacityError, match=r"all 1 requests of a load were refused.*queued_requests"):
        load_record({2: refused}, range(2, 3), Trace(INTERVALS), range(-1, 2))


def test_tokens_count_while_the_counted_requests_are_served() -> None:
    found = record()
    assert found.window == (1.0, 10.0)
    assert found.window_tokens == 2 + 4 + 1, "those of requests that are not counted too"
    assert found.window_requests == 2
    assert found.new_tokens == 4


def test_rows_are_shared_while_sessions_decode() -> None:
    decoding = {0: (2.0, 7.0), 1: (4.0, 10.0)}
    # On each stage 1 and 3 rows of 4, of which 2 are an equal share; then 2 rows of 2, alone.
    assert row_shares(INTERVALS, decoding) == {0: 2 / 4, 1: (6 + 2) / (4 + 2)}
    (served,) = record().requests
    assert served.row_share == pytest.approx(8 / 6)


def test_a_session_without_rows_has_no_share_of_them() -> None:
    assert row_shares(INTERVALS, {0: (2.0, 7.0), 1: (4.0, 10.0), 9: (4.0, 10.0)})[9] == 0
    assert row_shares(INTERVALS, {9: (4.0, 4.0)}) == {}


def test_the_use_of_the_pipeline() -> None:
    use = PipelineUse.between(INTERVALS, range(-1, 2), (0.0, 10.0))
    assert use.busy == pytest.approx({"d0": 0.25, "v1": 0.45, "v2": 0.3})
    assert use.limit == "v1"
    # D0 computes from 4 to 5.5 and from 9 to 10; V1 from 5 to 6.
    assert use.draft_node_alone == pytest.approx(0.2)
    assert use.idle_beside_draft_node == pytest.approx((0.2 + 0.25) / 2)
    assert use.all_idle == pytest.approx(0.05), "from 7.5 to 8"
    assert use.rows == ((2, 1), (4, 2), (5, 2), (7, 2)), "of one forward together; an aborted one has none"
    assert use.sessions == ((1, 5), (2, 2))


def test_quantiles_and_means_of_counts() -> None:
    counts = ((1, 50), (4, 49), (90, 1))
    assert [quantile_of(counts, share) for share in (0.5, 0.51, 0.99, 1.0)] == [1, 4, 4, 90]
    assert mean_of_counts(counts) == pytest.approx((50 + 4 * 49 + 90) / 100)
    assert (quantile_of((), 0.5), mean_of_counts(())) == (0, 0)


def test_the_slowest_answer_is_told_beside_the_mean() -> None:
    found = record()
    (served,) = found.requests
    slow = LoadRecord(
        found.window, 9, 2, (served, served.__class__(**{**vars(served), "latency_s": 15.5})), found.use
    )
    assert Fairness.of(slow).speed == pytest.approx(0.25 / ((0.5 + 0.25) / 2))
    assert Fairness.of(slow).rows == pytest.approx(8 / 6)


def test_a_record_survives_its_file() -> None:
    found = record()
    assert LoadRecord.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_an_answer_without_a_token_is_an_error() -> None:
    silent = answers() | {1: LoadAnswer(Arrival(1, 0.5, 1.0), 5)}
    with pytest.raises(DeadlineError, match="requests 1 of a load have no token"):
        load_record(silent, range(1, 2), Trace(INTERVALS), range(-1, 2))


def test_a_chart_shows_the_middle_of_the_measurement() -> None:
    many = [Interval(0, FORWARD, at / 10, (at + 1) / 10, 1, session=1) for at in range(1000)]
    found = LoadRecord((10.0, 90.0), 1, 1, (), record().use)
    trace = Trace(many, [PruneMark(0, 50.0), PruneMark(0, 5.0)])
    start, end = charted_span(found, trace)
    assert (start + end) / 2 == pytest.approx(50.0)
    part = charted_part(found, trace)
    assert 32 <= len(part.intervals) <= 34
    assert part.prunes == [PruneMark(0, 50.0)]
