"""Options that follow from the profile of a pipeline: SpecPipe's width and auto's price of a single row."""

from __future__ import annotations

from functools import partial

import numpy as np

from flowedge.core.messages import CONTEXT, Segment
from flowedge.engine.jobs import Forward, GrowDraft
from flowedge_testbed.costs.profile_costs import ProfileCosts
from flowedge_testbed.costs.specpipe_width import best_width
from flowedge_testbed.emulation.emulation import Emulation
from flowedge_testbed.profiles.hit_rate import HitRates

CONTEXT_ROWS = 256  # of a request in the middle of its answer
_SEGMENT_ROWS = 16


def level_width(emulation: Emulation, hit_rates: HitRates) -> int:
    """Return SpecPipe's width: the measured width with the shortest expected time between tokens.

    Transfers overlap with computing here, so each link is a step of equation 1, like each stage.
    """
    costs = ProfileCosts(emulation)

    def computing(stage: int, rows: int) -> float:
        return costs.stage_job(stage, _forward(rows))

    def sending(stage: int, rows: int) -> float:
        return costs.transfer(stage, _states(rows))

    return best_width(
        hit_rates.rates,
        [partial(step, stage) for stage in range(len(emulation.stages)) for step in (computing, sending)],
        lambda rows: costs.draft_job(_level(rows)),
        lambda rows: hit_rates.rates[rows],
    )


def lone_row_share(emulation: Emulation) -> float:
    """Return the time of all stages for a single row over their time for a segment of 16 rows.

    With some 4-bit weights a single row is much cheaper: for more rows whole matrices are unpacked.
    """
    costs = ProfileCosts(emulation)

    def seconds(rows: int) -> float:
        return sum(costs.stage_job(stage, _forward(rows)) for stage in range(emulation.num_stages))

    return seconds(1) / seconds(_SEGMENT_ROWS)


def _forward(rows: int) -> Forward:
    return Forward(
        session="width",
        gathered_until=CONTEXT_ROWS,
        slots=np.zeros(0, dtype=np.int64),
        context=CONTEXT_ROWS,
        cached=CONTEXT_ROWS,
        tail_parents=np.full(rows, CONTEXT),
        positions=np.full(rows, CONTEXT_ROWS),
        payload=np.zeros(rows, dtype=np.int32),
    )


def _states(rows: int) -> Segment:
    positions = np.full(rows, CONTEXT_ROWS)
    return Segment("width", 0, 0, False, CONTEXT_ROWS, positions, positions, np.zeros((rows, 1)))


def _level(rows: int) -> GrowDraft:
    names = np.arange(1, rows + 1)
    return GrowDraft("width", 1, names, np.zeros_like(names), names, 1, None, None)
