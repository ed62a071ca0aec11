"""Counts of the work of decoding one request, and the mean number of its rows in flight."""

from __future__ import annotations

from collections import Counter

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.messages import Prune
from flowedge.core.request import DecodeCounters, VerifierCounts

_EMPTY = np.zeros(0, dtype=np.int64)


class RowsInFlightMeter:
    """Counts a session's segments from the moment they are handed to the link until they are settled.

    A segment is settled when it has been verified, or when it has come back without a live row and all
    segments before it are settled.
    Segments are settled in the order in which they were sent. Means are over the time from the first mark to
    the latest.
    """

    def __init__(self) -> None:
        self._in_flight: dict[int, int] = {}  # rows as sent, by segment
        self._committed: dict[int, int] = {}  # rows of them that no prune can drop
        self._owners: IntArray = _EMPTY  # segment of each draft row that was neither accepted nor pruned
        self._settled = -1
        self._now = 0.0
        self._sums = np.zeros(3)  # row seconds, live row seconds, live segment seconds since the first mark
        self._begun: float | None = None
        self._marked = (0.0, np.zeros(3))  # seconds and sums, from the first mark to the latest

    def send(self, number: int, rows: int, now: float, *, committed: bool) -> None:
        """Count a segment that is sent. Draft rows are numbered in the order they are sent."""
        self._advance(now)
        self._in_flight[number] = rows
        if committed:
            self._committed[number] = rows
        else:
            self._owners = np.append(self._owners, np.full(rows, number, dtype=np.int64))

    def prune(self, prune: Prune, now: float) -> None:
        """Follow a change of the session's row sequence."""
        self._advance(now)
        self._owners = self._owners[prune.retained[prune.accepted :] - prune.context]

    def settle(self, number: int, now: float) -> None:
        """Count a segment, and the segments before it, no more."""
        self._advance(now)
        self._settled = number
        for earlier in [sent for sent in self._in_flight if sent <= number]:
            del self._in_flight[earlier]
            self._committed.pop(earlier, None)

    def mark(self, now: float) -> None:
        """Begin the time of the means at the first call; extend it to `now` at every later call."""
        self._advance(now)
        if self._begun is None:
            self._begun = now
        self._marked = now - self._begun, self._sums.copy()

    def means(self) -> tuple[float, float, float]:
        """Return the mean rows in flight, live rows of them, and segments with a live row; 0 over no time."""
        seconds, sums = self._marked
        if seconds <= 0:
            return 0.0, 0.0, 0.0
        rows, alive, segments = (sums / seconds).tolist()
        return rows, alive, segments

    def _advance(self, now: float) -> None:
        elapsed, self._now = now - self._now, now
        if self._begun is None or elapsed <= 0:
            return
        alive = self._owners[self._owners > self._settled]
        self._sums += elapsed * np.array(
            [
                sum(self._in_flight.values()),
                len(alive) + sum(self._committed.values()),
                len(np.unique(alive)) + len(self._committed),
            ]
        )


class DecodeCounts:
    """Counts the work of decoding one request as it happens. Times are seconds of one clock.

    Attributes:
        meter: of the rows in flight.
        rollbacks, plain_tokens_per_s: see DecodeCounters; as of the latest commands of the strategy.
        reused_rows, verifiers: see DecodeCounters; `verifiers` is set when the session ends.
        busy_s, bytes_sent: of the draft node itself, as in StageReport.
    """

    def __init__(self) -> None:
        self.meter = RowsInFlightMeter()
        self.rollbacks: tuple[int, ...] = ()
        self.verifiers: tuple[VerifierCounts, ...] = ()
        self.plain_tokens_per_s = 0.0
        self.reused_rows = 0
        self.busy_s = 0.0
        self.bytes_sent = 0
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
            verifiers=self.verifiers,
            plain_tokens_per_s=self.plain_tokens_per_s,
            reused_rows=self.reused_rows,
            rows_in_flight=rows,
            rows_alive_in_flight=alive,
            segments_in_flight=segments,
            accepted_per_segment=tuple(self._per_segment),
            accepted_per_round=tuple(self._per_round),
        )
