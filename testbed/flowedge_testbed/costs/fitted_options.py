"""Options that follow from the profile of a pipeline: SpecPipe's width."""

from __future__ import annotations

from functools import partial

import numpy as np

from flowedge.core.verification import LAST_STAGE
from flowedge.engine.jobs import DraftBatch, GrowDraft
from flowedge_testbed.costs.profile_costs import ProfileCosts
from flowedge_testbed.costs.sample_jobs import forward_of, states_of
from flowedge_testbed.costs.specpipe_width import best_width
from flowedge_testbed.emulation.emulation import Emulation
from flowedge_testbed.profiles.hit_rate import HitRates


def level_width(emulation: Emulation, hit_rates: HitRates) -> int:
    """Return SpecPipe's width: the measured width with the shortest expected time between tokens.

    Transfers overlap with computing here, so each link is a step of equation 1, like each stage.
    """
    costs = ProfileCosts(emulation)
    drawing = emulation.num_stages - 1 if emulation.verification == LAST_STAGE else None

    def computing(stage: int, rows: int) -> float:
        return costs.stage_job(stage, forward_of(rows, drawn=1 if stage == drawing else 0))

    def sending(stage: int, rows: int) -> float:
        return costs.transfer(stage, states_of(1 if stage == drawing else rows))

    return best_width(
        hit_rates.rates,
        [partial(step, stage) for stage in range(len(emulation.stages)) for step in (computing, sending)],
        lambda rows: costs.draft_job(_level(rows)),
        lambda rows: hit_rates.rates[rows],
    )


def _level(rows: int) -> DraftBatch:
    names = np.arange(1, rows + 1)
    return DraftBatch([GrowDraft("width", 1, names, np.zeros_like(names), names, 1, None, None)])
