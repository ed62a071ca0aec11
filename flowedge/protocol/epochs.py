"""Index arithmetic of prunes: how rows of one epoch are numbered in the next.

A prune keeps the order of what it retains, so consecutive rows stay consecutive and a segment stays a run of
rows under any number of prunes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Prune, Segment


def check_prune(prune: Prune, context: int, cached: int) -> None:
    """Refuse a prune that does not fit a holder with `context` context rows and `cached` rows.

    Raises ProtocolError.
    """
    retained = prune.retained
    if prune.context != context:
        raise ProtocolError(f"prune {prune.epoch} starts from context {prune.context}, here it is {context}")
    if prune.source_len < cached:
        raise ProtocolError(
            f"prune {prune.epoch} is of a sequence of {prune.source_len} rows, but {cached} are cached here"
        )
    if not 0 <= prune.accepted <= len(retained):
        raise ProtocolError(f"prune {prune.epoch} accepts {prune.accepted} of {len(retained)} retained rows")
    if len(retained) and not (
        context <= retained[0] and retained[-1] < prune.source_len and bool(np.all(np.diff(retained) > 0))
    ):
        raise ProtocolError(
            f"prune {prune.epoch} must retain ascending rows from {context} to below {prune.source_len}"
        )
    if prune.accepted and retained[prune.accepted - 1] >= cached:
        raise ProtocolError(
            f"prune {prune.epoch} accepts row {retained[prune.accepted - 1]}, but {cached} are cached here"
        )


def retained_from(prune: Prune, first_row: int, num_rows: int) -> IntArray:
    """Offsets, ascending, of the rows first_row .. first_row + num_rows that the prune retains: int64 [k]."""
    start, stop = np.searchsorted(prune.retained, [first_row, first_row + num_rows])
    offsets: IntArray = prune.retained[start:stop] - first_row
    return offsets


def renumbered(prune: Prune, rows: IntArray) -> IntArray:
    """The numbers after the prune of rows that it retains (or that were context before it): int64 [n]."""
    moved = prune.context + np.searchsorted(prune.retained, rows)
    return np.where(rows < prune.context, rows, moved).astype(np.int64)


def renumbered_parents(prune: Prune, parents: IntArray) -> IntArray:
    """Parents of retained rows after the prune: CONTEXT where the parent is context now."""
    moved = renumbered(prune, parents)
    return np.where(moved < prune.context + prune.accepted, CONTEXT, moved).astype(np.int64)


def map_segment(segment: Segment, prune: Prune) -> tuple[Segment, IntArray]:
    """A segment of epoch `prune.epoch` - 1 as the prune leaves it.

    Returns:
        The segment with its live rows in the new numbering, and their offsets in the old one: int64 [k].
    """
    if segment.committed:
        return replace(segment, epoch=prune.epoch), np.arange(segment.num_rows)
    kept = retained_from(prune, segment.first_row, segment.num_rows)
    live = segment.take(kept)
    first = int(renumbered(prune, np.array([segment.first_row + kept[0]]))[0]) if len(kept) else 0
    return (
        replace(
            live,
            epoch=prune.epoch,
            first_row=first,
            parents=renumbered_parents(prune, live.parents),
        ),
        kept,
    )
