"""Where an emulated pipeline verifies, and the split of its layers beside the LM head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flowedge.core.errors import CapacityError
from flowedge.core.messages import Segment
from flowedge.core.verification import (
    DRAFT_NODE,
    LAST_STAGE,
    VerificationChoice,
    VerificationPlace,
    cheaper_place,
)
from flowedge.placement.split import layers_beside_head
from flowedge_testbed.costs.profile_costs import ProfileCosts
from flowedge_testbed.costs.sample_jobs import forward_of, states_of
from flowedge_testbed.emulation.emulation import Emulation, even_split
from flowedge_testbed.emulation.memory_fit import require_fit

SEGMENT_ROWS = 16  # of the segment that places are compared by
ACCEPTED_ROWS = 2  # of them
CACHED_ROWS = 2048  # of the session that has to fit beside the LM head, if the place is to be chosen


def with_verification(emulation: Emulation, choice: VerificationChoice, *, even: bool) -> Emulation:
    """Return the emulation with its place of verification.

    Args:
        emulation: one that verifies on the draft node.
        choice: the place; "auto" takes the last stage if it is cheaper there and the LM head fits.
        even: whether the layers may be split anew, so that a last stage with the LM head takes as long as the
            other stages.
    """
    if choice == DRAFT_NODE:
        return emulation
    at_last = _at_last_stage(emulation, even=even)
    if choice == LAST_STAGE:
        return at_last
    return at_last if _fits(at_last) and cheaper_verification(emulation) == LAST_STAGE else emulation


def cheaper_verification(emulation: Emulation) -> VerificationPlace:
    """Return the place at which verifying a segment takes the least time, by the profiles."""
    here, there = (ProfileCosts(replace(emulation, verification=place)) for place in (DRAFT_NODE, LAST_STAGE))
    last = emulation.num_stages - 1
    states = states_of(SEGMENT_ROWS)
    saved = here.transfer(last, states) - there.transfer(last, _accepted(states, emulation.needs_features))
    return cheaper_place(here.verify(SEGMENT_ROWS), there.verify(SEGMENT_ROWS), saved)


def _at_last_stage(emulation: Emulation, *, even: bool) -> Emulation:
    at_last = replace(emulation, verification=LAST_STAGE)
    layers, stages = emulation.model.layers, emulation.num_stages
    if not even or stages == 1:
        return at_last
    costs = ProfileCosts(at_last)
    head_layers = costs.verify(SEGMENT_ROWS) / costs.layer(stages - 1, forward_of(SEGMENT_ROWS))
    last = layers_beside_head(layers, stages, head_layers)
    return replace(at_last, split=(*even_split(layers - last, stages - 1), last))


def _fits(emulation: Emulation) -> bool:
    try:
        require_fit(emulation, CACHED_ROWS)
    except CapacityError:
        return False
    return True


def _accepted(states: Segment, features: bool) -> Segment:
    """Return the segment as a last stage that draws returns it."""
    drawn = np.full(states.num_rows, -1)
    drawn[:ACCEPTED_ROWS] = 0
    kept = states.payload[:ACCEPTED_ROWS]
    return replace(states, drawn=drawn, payload=kept if features else kept[:, :0])
