"""A session as a stage holds it: its cached rows, their numbering, and the prunes that are still needed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from flowedge.core.arrays import Payload
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import Drawing, Open, Prune, Segment
from flowedge.core.request import StageReport
from flowedge.engine.jobs import Forward, OpenCache
from flowedge.engine.stage.cached_rows import CachedRows
from flowedge.engine.stage.drawn_path import DrawnPath
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.protocol.epochs import check_prune, map_segment, retained_from


class WithheldTaps:
    """The tapped values of the draft rows that a stage has computed, in the numbering of the session."""

    def __init__(self, hidden: int) -> None:
        """hidden: values of a row before those that the stage has tapped."""
        self._hidden = hidden
        self._rows: list[Payload] = []

    def take(self, rows: Payload) -> Payload:
        """Keep what was tapped of the next draft rows [n, width]; return the rest of them [n, hidden]."""
        self._rows += list(rows[:, self._hidden :])
        rest: Payload = rows[:, : self._hidden]
        return rest

    def apply(self, prune: Prune) -> Payload | None:
        """Drop the rows that a prune does not retain; return those that it accepts, None if there are none.

        Raises:
            ProtocolError: when it accepts a row that is not computed yet.
        """
        kept = retained_from(prune, prune.context, len(self._rows)).tolist()
        if prune.accepted > len(kept):
            raise ProtocolError(f"prune {prune.epoch} accepts rows that are not computed yet")
        accepted = [self._rows[row] for row in kept[: prune.accepted]]
        self._rows = [self._rows[row] for row in kept[prune.accepted :]]
        return np.stack(accepted) if accepted else None


MAX_HELD_PRUNES = 1024


class StageSession:
    """State of one session on a stage.

    Attributes:
        opening: the job that allocates its cache; capacity: rows of that.
        tail: the rows that are cached or being computed.
        epoch: number of the last prune that was applied; the session's rows are in its numbering.
        fence: number of the last prune that came in-band.
        drawing, computed_alone: as the session was opened with.
        path: what this stage has drawn for the session; None where it does not draw.
        taps: what this stage has tapped of draft rows; None where nothing is kept.
        maps: the applied prunes beyond the fence, by number; held: prunes that come later in number order.
    """

    def __init__(
        self, device: str, opened: Open, work: Counter[str], spec: StageSpec, opening: OpenCache
    ) -> None:
        """work: the sums over all sessions of the stage, by field of StageReport."""
        self.opening = opening
        self.capacity = opened.capacity
        self.drawing: Drawing | None = opened.drawing
        self.computed_alone = opened.computed_alone
        self.path = DrawnPath(opened.drawing) if spec.draws and opened.drawing is not None else None
        self._spec = spec
        self._draft_width = spec.width - spec.tapped_before if opened.keeps_taps else spec.width
        keeps = opened.keeps_taps and spec.added_width > 0 and self.path is None
        self.taps = WithheldTaps(self._draft_width + spec.change) if keeps else None
        self.tail = CachedRows(0 if opened.prefix is None else opened.prefix.rows)
        self.epoch = 0
        self.fence = 0
        self.maps: dict[int, Prune] = {}
        self.held: dict[int, Prune] = {}
        self._work = work
        self._counted: dict[str, Any] = {"device": device}

    @property
    def held_rows(self) -> int:
        """The cache rows by which the session counts."""
        return self._spec.held_rows(self.tail.most, self.capacity)

    @property
    def report(self) -> StageReport:
        return StageReport(**self._counted)

    def taken_width(self, *, committed: bool) -> int:
        """Return the values of a row of hidden states that comes in."""
        return self._spec.width if committed else self._draft_width

    def handed_width(self, *, committed: bool) -> int:
        """Return the values of a row that is handed on; 0 where only draws are."""
        if self.path is not None and self.drawing is not None and not self.drawing.features:
            return 0
        kept = self.taps is not None and not committed
        added = 0 if kept else self._spec.added_width
        return self.taken_width(committed=committed) + self._spec.change + added

    def check_payload(self, segment: Segment) -> None:
        """Check the size and the type of the rows that a segment carries.

        Raises:
            ProtocolError: when they are not what the stage takes.
        """
        spec, payload, rows = self._spec, segment.payload, segment.num_rows
        width = self.taken_width(committed=segment.committed)
        wanted: tuple[int, ...] = (rows,) if spec.is_first else (rows, width)
        dtype = "int32" if spec.is_first else spec.dtype
        if rows > spec.max_rows or len(segment.parents) != rows:
            raise ProtocolError(
                f"segment {segment.number} has {rows} rows and {len(segment.parents)} parents"
            )
        if payload.shape != wanted or payload.dtype.name != dtype:
            raise ProtocolError(
                f"segment {segment.number} carries {payload.dtype.name} {list(payload.shape)}, "
                f"this stage takes {dtype} {list(wanted)}"
            )
        if spec.is_first and rows and not (payload.min() >= 0 and payload.max() < spec.vocab_size):
            raise ProtocolError(f"segment {segment.number} has a token id outside 0..{spec.vocab_size - 1}")

    def check_tokens(self, segment: Segment) -> None:
        """Check that draft rows have their tokens exactly where a stage behind the first needs them.

        Raises:
            ProtocolError: when they do not, or a token id is out of bounds.
        """
        vocab_size = self._spec.vocab_size
        wanted = not (self.drawing is None or self._spec.is_first or segment.committed)
        tokens = segment.tokens
        if segment.drawn is not None:
            raise ProtocolError(f"segment {segment.number} carries draws, which only the last stage adds")
        if segment.num_rows and wanted != (tokens is not None):
            fault = "lacks the tokens of its draft rows" if wanted else "carries tokens that no stage needs"
            raise ProtocolError(f"segment {segment.number} {fault}")
        if tokens is not None and len(tokens) and tokens.max() >= vocab_size:
            raise ProtocolError(f"segment {segment.number} has a token id outside 0..{vocab_size - 1}")

    def count(self, **changes: float) -> None:
        """Add to the fields of the report; counts, but not seconds, are added to the stage's work as well."""
        for name, value in changes.items():
            self._counted[name] = self._counted.get(name, 0) + value
            if isinstance(value, int):
                self._work[name] += value

    def renumbered(self, segment: Segment) -> Segment:
        """Return the live rows of a segment that has arrived, in the session's numbering.

        Raises:
            ProtocolError: when its epoch is not the link's, or its rows go beyond the cache.
        """
        if segment.epoch != self.fence:
            relation = "newer" if segment.epoch > self.fence else "older"
            raise ProtocolError(
                f"segment {segment.number} is of epoch {segment.epoch}, "
                f"{relation} than the link's {self.fence}"
            )
        if segment.first_row < 0 or segment.first_row + segment.num_rows > self.capacity:
            raise ProtocolError(f"segment {segment.number} goes beyond the session's {self.capacity} rows")
        for epoch in range(segment.epoch + 1, self.epoch + 1):
            segment = self.trimmed(segment, self.maps[epoch])
        return segment

    def trimmed(self, segment: Segment, prune: Prune) -> Segment:
        """Return the rows of a waiting segment that a prune retains; the others are counted."""
        mapped, _ = map_segment(segment, prune)
        self.count(rows_trimmed=segment.num_rows - mapped.num_rows)
        return mapped

    def check_fence(self, prune: Prune) -> None:
        """Refuse a prune from the in-band link that does not follow the last one.

        Raises:
            ProtocolError: when prunes are missing between them.
        """
        if prune.epoch != self.fence + 1:
            raise ProtocolError(f"prune {prune.epoch} follows {self.fence} on the in-band link")

    def pass_fence(self, epoch: int) -> None:
        """Drop the map of a prune whose in-band copy has come: no segment needs it any more."""
        self.fence = epoch
        self.maps.pop(epoch, None)

    def hold(self, prune: Prune) -> None:
        """Keep a prune until all earlier ones are applied; a prune that was applied already is ignored.

        Raises:
            ProtocolError: when too many prunes are held.
        """
        if prune.epoch > self.epoch:
            if len(self.held) >= MAX_HELD_PRUNES:
                raise ProtocolError(f"{MAX_HELD_PRUNES} prunes are held already")
            self.held[prune.epoch] = prune

    def next_held(self) -> Prune | None:
        """Return the next prune by number; None if it has not arrived."""
        return self.held.get(self.epoch + 1)

    def apply(self, prune: Prune) -> Payload | None:
        """Renumber the cached rows by the next prune; return what was kept of the rows that it accepts.

        Raises:
            ProtocolError: when the prune does not fit them.
        """
        self.held.pop(prune.epoch, None)
        check_prune(prune, self.tail.context, self.tail.cached)
        if self.path is not None:
            self.path.apply(prune)
        tapped = None if self.taps is None else self.taps.apply(prune)
        self.tail.apply(prune)
        self.epoch = prune.epoch
        if prune.epoch > self.fence:
            self.maps[prune.epoch] = prune
        return tapped

    def begin_forward(self, segment: Segment) -> Forward:
        """Take the rows of a segment into the cache and return the job that computes them.

        Raises:
            ProtocolError: when they do not follow the cached rows.
        """
        tail = self.tail
        tail.check_next(segment)
        draw = None if self.path is None else self.path.draw(segment)
        job = Forward(
            session=segment.session,
            gathered_until=tail.gathered_until,
            slots=tail.slots,
            context=tail.context,
            cached=tail.cached,
            tail_parents=tail.forward_parents(segment),
            positions=segment.positions,
            payload=segment.payload,
            committed=segment.committed,
            draw=draw,
        )
        tail.append(segment)
        return job
