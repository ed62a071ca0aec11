"""Jobs and messages in the middle of an answer, to read costs off."""

from __future__ import annotations

import numpy as np

from flowedge.core.messages import CONTEXT, Segment
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draw import Draw
from flowedge.engine.jobs import Forward, ForwardBatch

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
