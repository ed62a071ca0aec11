"""Counts of the work of decoding one request, and the mean number of its rows in flight."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from flowedge.core.messages import Prune
from flowedge.core.request import DecodeCounters, VerifierCounts

_Sums = tuple[float, float, float]  # of rows in flight, of live rows and of segments with a live row


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
        self._owners: list[int] = []  # segment of each draft row that was neither accepted nor pruned
        self._settled = -1
        self._now = 0.0
        self._sums: _Sums = (0.0, 0.0, 0.0)  # of the counts times their seconds since the first mark
        self._begun: float | None = None
        self._marked: tuple[float, _Sums] = (0.0, self._sums)  # seconds and sums until the latest mark

    def send(self, number: int, rows: int, now: float, *, committed: bool) -> None:
        """Count a segment that is sent. Draft rows are numbered in the order they are sent."""
        self._advance(now)
        self._in_flight[number] = rows
        if committed:
            self._committed[number] = rows
        else:
            self._owners += [number] * rows

    def prune(self, prune: Prune, now: float) -> None:
        """Follow a change of the session's row sequence."""
        self._advance(now)
        draft = (prune.retained[prune.accepted :] - prune.context).tolist()
        self._owners = [self._owners[row] for row in draft]

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
        self._marked = now - self._begun, self._sums

    def means(self) -> _Sums:
        """Return the mean rows in flight, live rows of them, and segments with a live row; 0 over no time."""
        seconds, sums = self._marked
        if seconds <= 0:
            return 0.0, 0.0, 0.0
        rows, alive, segments = sums
        return rows / seconds, alive / seconds, segments / seconds

    def _advance(self, now: float) -> None:
        elapsed, self._now = now - self._now, now
        if self._begun is None or elapsed <= 0:
            return
        alive = self._owners[bisect_right(self._owners, self._settled) :]  # rows are in their segments' order
        rows, alive_rows, segments = self._sums
        self._sums = (
            rows + elapsed * sum(self._in_flight.values()),
            alive_rows + elapsed * (len(alive) + sum(self._committed.values())),
            segments + elapsed * (len(set(alive)) + len(self._committed)),
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
        for name, amount in work.items():  # Counter.update takes several times as long
            self._work[name] += amount

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
