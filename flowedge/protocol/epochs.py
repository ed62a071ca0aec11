"""Index arithmetic of prunes: the numbering of one epoch's rows in the next epoch.

A prune keeps the order of the rows that it retains, so the rows of a segment stay consecutive.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Prune, Segment


def check_prune(prune: Prune, context: int, cached: int) -> None:
    """Check a prune against a session with `context` context rows and `cached` rows in all.

    Raises:
        ProtocolError: when the prune does not fit.
    """
    retained = prune.retained
    if prune.context != context:
        raise ProtocolError(
            f"prune {prune.epoch} starts from context {prune.context}; the session has {context}"
        )
    if prune.source_len < cached:
        raise ProtocolError(
            f"prune {prune.epoch} applies to {prune.source_len} rows, but {cached} are cached"
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
            f"prune {prune.epoch} accepts row {retained[prune.accepted - 1]}, but {cached} are cached"
        )


def retained_from(prune: Prune, first_row: int, num_rows: int) -> IntArray:
    """Return the offsets of the rows first_row .. first_row + num_rows that a prune retains: int64 [k]."""
    start, stop = _retained_between(prune, first_row, first_row + num_rows)
    offsets: IntArray = prune.retained[start:stop] - first_row
    return offsets


def _retained_between(prune: Prune, first: int, stop: int) -> tuple[int, int]:
    """Return the first of the retained rows from row `first` to below `stop`, and the one behind the last."""
    return int(prune.retained.searchsorted(first)), int(prune.retained.searchsorted(stop))


def renumbered(prune: Prune, rows: IntArray) -> IntArray:
    """Return the new indices of rows that a prune retains, or that were context before: int64 [n]."""
    moved = prune.context + np.searchsorted(prune.retained, rows)
    return np.where(rows < prune.context, rows, moved).astype(np.int64)


def renumbered_parents(prune: Prune, parents: IntArray) -> IntArray:
    """Return the new parents of retained rows: int64 [n], CONTEXT where the parent has become context."""
    if not len(parents):
        return parents
    places = prune.retained.searchsorted(parents)
    moved: IntArray = places + prune.context
    moved[(places < prune.accepted) | (parents < prune.context)] = CONTEXT
    return moved


def map_segment(segment: Segment, prune: Prune) -> tuple[Segment, IntArray]:
    """Apply a prune to a segment of the epoch before it.

    Returns:
        The segment of the retained rows in the new numbering, and their offsets in the given segment:
        int64 [k].
    """
    if segment.committed:
        return replace(segment, epoch=prune.epoch), np.arange(segment.num_rows)
    start, stop = _retained_between(prune, segment.first_row, segment.first_row + segment.num_rows)
    kept: IntArray = prune.retained[start:stop] - segment.first_row
    first = prune.context + start if len(kept) else 0
    parents = renumbered_parents(prune, segment.parents[kept])
    return segment.take(kept, epoch=prune.epoch, first_row=first, parents=parents), kept
