"""T_lat: the time of one segment through an emulated pipeline that is empty otherwise."""

from __future__ import annotations

import math

import numpy as np

from flowedge.core.messages import CONTEXT, Segment
from flowedge.core.sampling import SamplingParams
from flowedge.engine.jobs import Forward, Verify
from flowedge.simulate.virtual_pipeline import DRAFT_NODE
from flowedge_testbed.costs.profile_costs import ProfileCosts


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
    links = costs.emulation.links
    stages = range(costs.emulation.num_stages)
    positions = np.full(rows, cached)
    parents = np.full(rows, CONTEXT)
    tokens, states = np.zeros(rows, dtype=np.int32), np.zeros((rows, 1))
    draft, hidden = (Segment("", 0, 0, False, cached, positions, parents, x) for x in (tokens, states))
    forward = Forward("", cached, np.zeros(0, dtype=np.int64), cached, cached, parents, positions, tokens)
    verify = Verify("", SamplingParams(), states, tokens.astype(np.int64), parents, positions)
    return (
        costs.transfer(DRAFT_NODE, draft)
        + sum(costs.stage_job(stage, forward) + costs.transfer(stage, hidden) for stage in stages)
        + sum(link.latency_ms + link.jitter_ms / 2 for link in links) / 1e3
        + costs.draft_job(verify)
    )
