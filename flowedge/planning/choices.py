"""Where a pipeline verifies, its split beside the LM head, and whether its stages keep what they tap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flowedge.core.errors import CapacityError
from flowedge.core.messages import CONTEXT, Segment
from flowedge.core.pipeline_config import (
    DRAFT_NODE,
    LAST_STAGE,
    VerificationChoice,
    VerificationPlace,
    faster_sampler,
)
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draw import Draw
from flowedge.engine.jobs import Forward, ForwardBatch
from flowedge.models.taps import keeping_pays, taps_within
from flowedge.planning.memory_fit import require_fit
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.split import even_split, layers_beside_head

CONTEXT_ROWS = 256  # of a request in the middle of its answer


def forward_of(rows: int, cached: int = CONTEXT_ROWS, *, drawn: int = 0) -> ForwardBatch:
    """Return a forward over rows of one segment, of which a last stage with the LM head may visit `drawn`."""
    parents = np.full(rows, -1)
    parents[1:drawn] = 0
    tokens = np.zeros(rows, dtype=np.int64)
    forward = Forward(
        session="sample",
        gathered_until=cached,
        slots=np.zeros(0, dtype=np.int64),
        context=cached,
        cached=cached,
        tail_parents=np.full(rows, CONTEXT),
        positions=np.full(rows, cached),
        payload=np.zeros(rows, dtype=np.int32),
        draw=Draw(SamplingParams(), True, 0, tokens, parents) if drawn else None,
    )
    return ForwardBatch((forward,))


def states_of(rows: int, cached: int = CONTEXT_ROWS) -> Segment:
    """Return a segment of hidden states."""
    positions = np.full(rows, cached)
    return Segment("sample", 0, 0, False, cached, positions, positions, np.zeros((rows, 1)))


SEGMENT_ROWS = 16  # of the segment that places are compared by
ACCEPTED_ROWS = 2  # of them
CACHED_ROWS = 2048  # of the session that has to fit beside the LM head, if the place is to be chosen


def with_verification(
    pipeline: PipelineProfile, choice: VerificationChoice, *, even: bool
) -> PipelineProfile:
    """Return the pipeline with its place of verification.

    Args:
        pipeline: one that verifies on the draft node.
        choice: the place; "auto" takes the last stage if it is cheaper there and the LM head fits.
        even: whether the layers may be split anew, so that a last stage with the LM head takes as long as the
            other stages.
    """
    if choice == DRAFT_NODE:
        return pipeline
    at_last = _at_last_stage(pipeline, even=even)
    if choice == LAST_STAGE:
        return at_last
    return at_last if _fits(at_last) and cheaper_verification(pipeline) == LAST_STAGE else pipeline


def cheaper_verification(pipeline: PipelineProfile) -> VerificationPlace:
    """Return the place at which verifying a segment takes the least time, by the profiles."""
    here, there = (ProfileCosts(replace(pipeline, verification=place)) for place in (DRAFT_NODE, LAST_STAGE))
    last = pipeline.num_stages - 1
    states = states_of(SEGMENT_ROWS)
    saved = here.transfer(last, states) - there.transfer(last, _accepted(states, pipeline.needs_features))
    return faster_sampler(here.verify(SEGMENT_ROWS), there.verify(SEGMENT_ROWS), saved)


def _at_last_stage(pipeline: PipelineProfile, *, even: bool) -> PipelineProfile:
    at_last = replace(pipeline, verification=LAST_STAGE)
    layers, stages = pipeline.model.layers, pipeline.num_stages
    if not even or stages == 1:
        return at_last
    costs = ProfileCosts(at_last)
    head_layers = costs.verify(SEGMENT_ROWS) / costs.layer(stages - 1, forward_of(SEGMENT_ROWS))
    last = layers_beside_head(layers, stages, head_layers)
    return replace(at_last, split=(*even_split(layers - last, stages - 1, larger_first=True), last))


def _fits(pipeline: PipelineProfile) -> bool:
    try:
        require_fit(pipeline, CACHED_ROWS)
    except CapacityError:
        return False
    return True


def _accepted(states: Segment, features: bool) -> Segment:
    """Return the segment as a last stage that draws returns it."""
    drawn = np.full(states.num_rows, -1)
    drawn[:ACCEPTED_ROWS] = 0
    kept = states.payload[:ACCEPTED_ROWS]
    return replace(states, drawn=drawn, payload=kept if features else kept[:, :0])


def with_retained_taps(pipeline: PipelineProfile, wanted: bool | None) -> PipelineProfile:
    """Return the pipeline whose stages keep what they tap, if they tap anything.

    wanted: None for what saves time: less than a round trip to the stages for the drafter to wait.
    """
    taps, blocks = pipeline.taps, pipeline.keeping_blocks
    *links, to_first = pipeline.links
    ways_back = [
        _latency_s(link)
        for link, (start, stop) in zip(links, blocks, strict=False)
        if taps_within(taps, start, stop)
    ]
    if not ways_back or wanted is not None:
        return replace(pipeline, keeps_taps=bool(ways_back and wanted))
    value_s = [pipeline.model.stored_bytes / link.bytes_per_s for link in links[: len(blocks)]]
    round_trip_s = _latency_s(to_first) + max(ways_back)
    keeps = keeping_pays(pipeline.model.hidden, taps, blocks, value_s, round_trip_s)
    return replace(pipeline, keeps_taps=keeps)


def _latency_s(link: LinkProfile) -> float:
    return (link.latency_ms + link.jitter_ms / 2) / 1e3
