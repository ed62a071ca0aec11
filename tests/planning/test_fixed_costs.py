"""The simple cost table: what a last stage that draws takes and sends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.messages import CONTEXT, Segment
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draw import Draw
from flowedge.engine.jobs import Forward, ForwardBatch
from flowedge.planning.fixed_costs import HEADER_BYTES, FixedCosts

COSTS = FixedCosts(stage_s=2, row_s=0.5, layers=4, verify_s=3, row_bytes=100)
ROWS = np.arange(2)
FORWARD = Forward("s", 4, ROWS[:0], 4, 4, np.full(2, CONTEXT), ROWS, ROWS.astype(np.int32))


def drawing(first: int | None) -> ForwardBatch:
    draw = Draw(SamplingParams(), True, first, ROWS, np.array([-1, 0]))
    return ForwardBatch((replace(FORWARD, draw=draw),))


def test_only_a_stage_that_draws_takes_the_time_of_the_head() -> None:
    assert COSTS.stage_job(0, ForwardBatch((FORWARD,))) == pytest.approx(3)
    assert COSTS.stage_job(0, drawing(None)) == pytest.approx(3)
    assert COSTS.stage_job(0, drawing(0)) == pytest.approx(6)
    assert COSTS.layer(0, drawing(0)) == pytest.approx(0.75)


def test_rows_off_the_path_are_not_sent() -> None:
    segment = Segment("s", 0, 0, False, 4, ROWS, ROWS, np.zeros((2, 3)))
    assert COSTS.message_bytes(0, segment) == HEADER_BYTES + 2 * (100 + 4)
    assert COSTS.message_bytes(0, replace(segment, tokens=ROWS)) == HEADER_BYTES + 2 * (100 + 8)
    back = replace(segment, drawn=np.array([5, -1]), payload=segment.payload[:1])
    assert COSTS.message_bytes(1, back) == HEADER_BYTES + 2 * 8 + 100
    assert COSTS.message_bytes(1, replace(back, payload=back.payload[:, :0])) == HEADER_BYTES + 2 * 8
