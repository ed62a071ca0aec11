"""Plans of ordered attention whose arrays have the same sizes in every forward of a shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.models.exact.reading_plan import (
    BLOCK,
    CHUNK,
    TAIL_SLOTS,
    Bools,
    HeadChunk,
    HeadGroup,
    ReadingPlan,
    TailGroup,
)
from flowedge.models.graphs.shapes import StaticShape


def fixed_plan(
    plan: ReadingPlan, shape: StaticShape, window: int | None, group_rows: int | None
) -> ReadingPlan | None:
    """Return a plan that reads the same keys in the same order; None when the fixed sizes do not suffice.

    Tails are padded to TAIL_SLOTS slots, or to the 2 * BLOCK slots of a single row. There is one group of
    heads, with the chunks of all columns or of a window. Padding is hidden from every row, and so changes no
    bit of a result.

    Args:
        plan: a plan of `shape.rows` rows; window, group_rows: those that the plan was made with.
    """
    groups = shape.rows if group_rows == 1 else 1
    if len(plan.tails) != groups or len(plan.heads) > 1 or group_rows not in (None, 1):
        return None
    chunks = _fixed_chunks(plan, shape, window)
    if chunks is None:
        return None
    width = 2 * BLOCK if group_rows == 1 else TAIL_SLOTS
    return ReadingPlan(plan.rows, [_padded(tail, width) for tail in plan.tails], [HeadGroup(None, chunks)])


def _padded(tail: TailGroup, width: int) -> TailGroup:
    own = len(tail.slots)
    slots = np.zeros(width, dtype=np.int64)
    slots[:own] = tail.slots
    hidden = np.ones((len(tail.hidden), width), dtype=np.bool_)
    hidden[:, :own] = tail.hidden
    return TailGroup(tail.first, tail.stop, slots, hidden)


def _fixed_chunks(plan: ReadingPlan, shape: StaticShape, window: int | None) -> list[HeadChunk] | None:
    head = plan.heads[0] if plan.heads else HeadGroup(None, [])
    if any(chunk.slots is not None for chunk in head.chunks):
        return None
    if window is None or window + 2 * CHUNK >= shape.columns:
        return _in_place(plan.rows, head, shape)
    return _indexed(plan.rows, head, window // CHUNK + 2)


def _in_place(rows: int, head: HeadGroup, shape: StaticShape) -> list[HeadChunk] | None:
    """Every chunk of the columns."""
    by_start = {chunk.start: chunk for chunk in head.chunks}
    starts = range(0, shape.columns, CHUNK)
    if not by_start.keys() <= {*starts}:
        return None
    return [HeadChunk(start, None, _hidden(rows, head, by_start.get(start))) for start in starts]


def _indexed(rows: int, head: HeadGroup, count: int) -> list[HeadChunk] | None:
    """Chunks of which each has an index of its slots, so that their places may change."""
    if len(head.chunks) > count:
        return None
    chunks: Sequence[HeadChunk | None] = [*head.chunks, *[None] * (count - len(head.chunks))]
    return [
        HeadChunk(
            0,
            np.arange(CHUNK) + (0 if chunk is None else chunk.start),
            _hidden(rows, head, chunk),
        )
        for chunk in chunks
    ]


def _hidden(rows: int, head: HeadGroup, chunk: HeadChunk | None) -> Bools:
    """What is hidden [rows, CHUNK] of a chunk from all rows of the plan."""
    hidden = np.ones((rows, CHUNK), dtype=np.bool_)
    if chunk is not None:
        index = slice(None) if head.rows is None else head.rows
        hidden[index] = False if chunk.hidden is None else chunk.hidden
    return hidden
