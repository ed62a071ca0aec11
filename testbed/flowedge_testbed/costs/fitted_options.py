"""What methods take from the profile of a pipeline: SpecPipe its width, auto the price of a lone row."""

from __future__ import annotations

from functools import partial

import numpy as np

from flowedge.core.messages import CONTEXT, Segment
from flowedge.engine.jobs import Forward, GrowDraft
from flowedge_testbed.costs.costs import ProfileCosts
from flowedge_testbed.costs.specpipe_width import best_width
from flowedge_testbed.emulation.emulation import Emulation
from flowedge_testbed.profiles.hit_rate import HitRates

CONTEXT_ROWS = 256  # of a request in the middle of its answer
_SEGMENT_ROWS = 16


def level_width(emulation: Emulation, hit_rates: HitRates) -> int:
    """SpecPipe's width: of those whose hit rate was measured, that of the shortest time between tokens.

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
    """What all stages take for one row over what they take for a segment of them.

    Some products with 4-bit weights take much less, which unpack whole matrices for more than one row.
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
