"""T_lat: the time of one segment through an emulated pipeline that is empty otherwise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flowedge.core.verification import LAST_STAGE
from flowedge.simulate.virtual_pipeline import DRAFT_NODE
from flowedge_testbed.costs.profile_costs import ProfileCosts
from flowedge_testbed.costs.sample_jobs import forward_of, states_of


def trip_s(costs: ProfileCosts, rows: float, cached: int) -> float:
    """Return the seconds from when a segment leaves the draft node until its draws are known.

    The time is that of every stage and link once, then the verification. Jitter counts with its mean.

    Args:
        rows: live rows of the segment, 1 or more; the time is interpolated between whole numbers.
        cached: rows in the stages' caches.
    """
    wanted = max(rows, 1.0)
    whole = math.floor(wanted)
    below = _crossing_s(costs, whole, cached)
    if wanted == whole:
        return below
    return below + (wanted - whole) * (_crossing_s(costs, whole + 1, cached) - below)


def _crossing_s(costs: ProfileCosts, rows: int, cached: int) -> float:
    emulation = costs.emulation
    hidden, forward = states_of(rows, cached), forward_of(rows, cached)
    draft = replace(hidden, payload=np.zeros(rows, dtype=np.int32))
    # A last stage that draws returns the root's row at least.
    returned = states_of(1, cached) if emulation.verification == LAST_STAGE else hidden
    *between, last = range(emulation.num_stages)
    return (
        costs.transfer(DRAFT_NODE, draft)
        + sum(costs.stage_job(stage, forward) + costs.transfer(stage, hidden) for stage in between)
        + costs.stage_job(last, forward)
        + costs.transfer(last, returned)
        + sum(link.latency_ms + link.jitter_ms / 2 for link in emulation.links) / 1e3
        + costs.verify(rows)
    )
