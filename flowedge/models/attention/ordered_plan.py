"""The cached keys that each row of a forward reads, and their order: index arithmetic without tensors.

A row at position p reads its keys in two parts, divided at its border b(p) = BLOCK * max(0, p // BLOCK - 1).
Keys before the border are its old keys: for position 200, positions 0 to 127. They are read in chunks that
begin at multiples of CHUNK positions. Keys from the border on are its recent keys, at most 2 * BLOCK. The
border depends on the position alone. So the division of a row's keys is the same, whether an ancestor is
committed or draft and wherever it is cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK = 64  # positions between two borders
CHUNK = 128  # positions of a chunk of old keys
RECENT_SLOTS = 3 * BLOCK  # most slots of a group of recent keys; two blocks of one row, and one of other rows

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CachedPaths:
    """Rows of a forward, with their positions and their ancestors in the cache.

    Attributes:
        context: slots below it are committed: the slot is the position, and every row sees it.
        tail_positions: [tail], the position of the row in slot context + i.
        seen: [rows, tail], whether a row sees slot context + i: its ancestors and itself.
        positions: [rows], the rows' own positions.
    """

    context: int
    tail_positions: Ints
    seen: Bools
    positions: Ints

    def padded(self, rows: int) -> CachedPaths:
        """Repeat the last row until there are `rows` rows."""
        index = np.minimum(np.arange(rows), len(self.positions) - 1)
        return CachedPaths(self.context, self.tail_positions, self.seen[index], self.positions[index])


@dataclass(frozen=True, eq=False)
class RecentKeys:
    """Rows [first, stop) of a forward, which read their recent from a common list of slots.

    Attributes:
        slots: [width], ascending, which for each row is the order of positions; the end is padding.
        hidden: [stop - first, width], the slots that a row does not read.
    """

    first: int
    stop: int
    slots: Ints
    hidden: Bools


@dataclass(frozen=True, eq=False)
class OldChunk:
    """CHUNK positions of old, from position `start` on.

    Attributes:
        slots: [CHUNK], the slots to read; None when they are [start, start + CHUNK).
        hidden: [rows, CHUNK], the positions that a row does not read; None when each row reads all.
    """

    start: int
    slots: Ints | None
    hidden: Bools | None


@dataclass(frozen=True, eq=False)
class OldKeys:
    """Rows of a forward whose old are in the same slots, and the chunks that hold them.

    Attributes:
        rows: indices into the forward's rows; None for all rows.
    """

    rows: Ints | None
    chunks: list[OldChunk]


@dataclass(frozen=True, eq=False)
class KeyPlan:
    """What a layer's attention reads in a forward of `rows` rows."""

    rows: int
    recent: list[RecentKeys]
    old: list[OldKeys]


def plan_keys(paths: CachedPaths, window: int | None = None, group_rows: int | None = None) -> KeyPlan:
    """Plan a forward for layers whose rows see `window` positions; None for all positions.

    Args:
        group_rows: most rows of a group of recent keys; None for as many as RECENT_SLOTS allows. Groups of 1
            row all have the same width, so that products of the same size add up each row's recent keys.
    """
    borders = BLOCK * np.maximum(0, paths.positions // BLOCK - 1)
    rows = len(paths.positions)
    lows = np.zeros(rows, np.int64) if window is None else np.maximum(0, paths.positions - (window - 1))
    starts = np.maximum(borders, lows)
    return KeyPlan(
        rows,
        [
            _recent(paths, starts, *span, least_width=2 * BLOCK if group_rows == 1 else BLOCK)
            for span in _recent_spans(paths, starts, group_rows or rows)
        ],
        list(_old(paths, lows, borders)),
    )


def _recent_spans(paths: CachedPaths, starts: Ints, group_rows: int) -> Iterator[tuple[int, int]]:
    """Divide the rows into runs whose recent are in RECENT_SLOTS slots together."""
    first, rows = 0, len(starts)
    own = paths.seen & (paths.tail_positions >= starts[:, None])
    while first < rows:
        stop = min(rows, first + group_rows)
        # Row i of these sums counts the slots that rows [first, first + i] read.
        committed = paths.context - np.minimum.accumulate(starts[first:stop].clip(max=paths.context))
        draft = np.logical_or.accumulate(own[first:stop], axis=0).sum(axis=1)
        fitting = int(np.searchsorted(committed + draft, RECENT_SLOTS, side="right"))
        stop = first + fitting
        yield first, stop
        first = stop


def _recent(paths: CachedPaths, starts: Ints, first: int, stop: int, least_width: int) -> RecentKeys:
    starts = starts[first:stop, None]
    own = paths.seen[first:stop] & (paths.tail_positions >= starts)
    committed = np.arange(min(int(starts.min()), paths.context), paths.context)
    draft = np.flatnonzero(own.any(axis=0))
    read = np.concatenate((committed >= starts, own[:, draft]), axis=1)
    width = max(least_width, -(-read.shape[1] // BLOCK) * BLOCK)
    slots = np.zeros(width, dtype=np.int64)
    slots[: read.shape[1]] = np.concatenate((committed, paths.context + draft))
    hidden = np.ones((stop - first, width), dtype=np.bool_)
    hidden[:, : read.shape[1]] = ~read
    return RecentKeys(first, stop, slots, hidden)


def _old(paths: CachedPaths, lows: Ints, borders: Ints) -> Iterator[OldKeys]:
    """Group the rows by the slots of their old, which are the positions for all rows of a shallow tree."""
    beyond = np.flatnonzero((borders > paths.context) & (lows < borders))
    elsewhere: dict[bytes, list[int]] = {}
    for row in beyond:
        draft = np.flatnonzero(paths.seen[row] & (paths.tail_positions < borders[row]))
        if (draft != np.arange(len(draft))).any():
            elsewhere.setdefault(draft.tobytes(), []).append(int(row))
    is_in_place = lows < borders
    is_in_place[[row for rows in elsewhere.values() for row in rows]] = False
    in_place = np.flatnonzero(is_in_place)
    if len(in_place):
        group = None if len(in_place) == len(borders) else in_place
        yield OldKeys(group, _chunks(lows[in_place], borders[in_place], None))
    for draft_bytes, rows in elsewhere.items():
        draft = np.frombuffer(draft_bytes, dtype=np.int64)
        slots = np.concatenate((np.arange(paths.context), paths.context + draft))
        yield OldKeys(np.array(rows), _chunks(lows[rows], borders[rows], slots))


def _chunks(lows: Ints, borders: Ints, slots: Ints | None) -> list[OldChunk]:
    """The chunks between the first and the last position that any row reads; `slots` by position."""
    chunks = []
    first, seen_by_all = int(lows.min()) // CHUNK * CHUNK, (int(lows.max()), int(borders.min()))
    for start in range(first, int(borders.max()), CHUNK):
        if slots is None and seen_by_all[0] <= start and start + CHUNK <= seen_by_all[1]:
            chunks.append(OldChunk(start, None, None))
            continue
        positions = np.arange(start, start + CHUNK)
        hidden = (positions < lows[:, None]) | (positions >= borders[:, None])
        own = None
        if slots is not None:
            own = slots[np.minimum(positions, len(slots) - 1)]
            if np.array_equal(own, positions):
                own = None
        chunks.append(OldChunk(start, own, hidden if hidden.any() else None))
    return chunks
