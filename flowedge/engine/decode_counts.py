"""Counts of the work of decoding one request."""

from __future__ import annotations

from collections import Counter

from flowedge.core.request import DecodeCounters
from flowedge.engine.rows_in_flight import RowsInFlightMeter


class DecodeCounts:
    """Counts the work of decoding one request as it happens. Times are seconds of one clock.

    Attributes:
        meter: of the rows in flight.
        rollbacks: see DecodeCounters; as of the latest commands of the strategy.
        reused_rows: see DecodeCounters.
    """

    def __init__(self) -> None:
        self.meter = RowsInFlightMeter()
        self.rollbacks: tuple[int, ...] = ()
        self.reused_rows = 0
        self._work: Counter[str] = Counter()  # fields of DecodeCounters
        self._per_segment: list[int] = []
        self._per_round: list[int] = [0]
        self._begun = False

    def add(self, **work: int) -> None:
        """Add to fields of DecodeCounters."""
        self._work.update(work)

    def put_out(self, tokens: int, now: float) -> None:
        """Count the tokens put out after a returned segment; the prefill's token belongs to no segment."""
        if self._begun:
            self._per_segment.append(tokens)
            self._per_round[-1] += tokens
        self._begun = True
        self.meter.mark(now)

    def end_round(self) -> None:
        """Begin to count for another round."""
        self._per_round.append(0)

    def counters(self) -> DecodeCounters:
        """Return the counts so far."""
        rows, alive, segments = self.meter.means()
        return DecodeCounters(
            **self._work,
            rollbacks=self.rollbacks,
            reused_rows=self.reused_rows,
            rows_in_flight=rows,
            rows_alive_in_flight=alive,
            segments_in_flight=segments,
            accepted_per_segment=tuple(self._per_segment),
            accepted_per_round=tuple(self._per_round),
        )
