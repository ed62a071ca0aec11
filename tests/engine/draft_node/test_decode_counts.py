"""Rows in flight, as means over time, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.messages import Prune
from flowedge.engine.draft_node.decode_counts import RowsInFlightMeter


def prune(context: int, accepted: int, *retained: int) -> Prune:
    rows = np.array(retained, dtype=np.int64)
    return Prune("s", epoch=1, source_len=100, context=context, accepted=accepted, retained=rows)


def test_rows_count_until_their_fate_is_known() -> None:
    meter = RowsInFlightMeter()
    meter.send(0, 7, 0.0, committed=True)  # the prompt: before the first token nothing counts
    meter.settle(0, 5.0)
    meter.mark(5.0)
    meter.send(1, 4, 5.0, committed=False)  # rows 7 to 10
    meter.send(2, 2, 6.0, committed=False)  # rows 11 and 12
    meter.settle(1, 8.0)
    meter.prune(prune(7, 2, 7, 9, 12), 8.0)  # two of the first segment accepted, one of the second dead
    meter.mark(8.0)
    # 4 rows for 1 s, 6 for 2 s.
    assert meter.means() == pytest.approx(((4 + 12) / 3, (4 + 12) / 3, (1 + 4) / 3))
    meter.prune(prune(9, 0), 10.0)  # the last row dies, and its segment is still to come back
    meter.settle(2, 11.0)
    meter.mark(11.0)
    meter.mark(11.0)
    # Then 2 rows as sent for 3 s, one of them alive for 2 s.
    assert meter.means() == pytest.approx(((16 + 6) / 6, (16 + 2) / 6, (5 + 2) / 6))


def test_what_comes_after_the_last_mark_does_not_count() -> None:
    meter = RowsInFlightMeter()
    assert meter.means() == (0, 0, 0)
    meter.mark(1.0)
    assert meter.means() == (0, 0, 0), "over no time"
    meter.send(0, 1, 1.0, committed=True)
    meter.mark(2.0)
    meter.send(1, 9, 2.0, committed=False)
    meter.settle(0, 4.0)
    assert meter.means() == (1, 1, 1)


def test_a_verified_segment_is_not_in_flight_even_where_nothing_is_pruned() -> None:
    meter = RowsInFlightMeter()
    meter.mark(0.0)
    meter.send(0, 3, 0.0, committed=False)
    meter.send(1, 2, 0.0, committed=False)
    meter.settle(0, 1.0)
    meter.mark(2.0)
    assert meter.means() == pytest.approx(((5 + 2) / 2, (5 + 2) / 2, (2 + 1) / 2))


class PlainMeter:
    """The meter over arrays, which counts everything anew."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[int, bool]] = {}
        self.owners, self.settled, self.now = np.zeros(0, dtype=np.int64), -1, 0.0
        self.sums, self.begun, self.marked = np.zeros(3), None, (0.0, np.zeros(3))

    def advance(self, now: float) -> None:
        elapsed, self.now = now - self.now, now
        if self.begun is not None and elapsed > 0:
            alive = self.owners[self.owners > self.settled]
            committed = [rows for rows, is_committed in self.sent.values() if is_committed]
            rows = sum(rows for rows, _ in self.sent.values())
            counts = [rows, len(alive) + sum(committed), len(np.unique(alive)) + len(committed)]
            self.sums = self.sums + elapsed * np.array(counts)


@pytest.mark.parametrize("seed", range(20))
def test_the_means_are_those_of_the_plain_form(seed: int) -> None:
    random = np.random.default_rng(seed)
    meter, plain, now, number, context = RowsInFlightMeter(), PlainMeter(), 0.0, 0, 3
    for _ in range(60):
        now += float(random.choice([0.0, random.uniform()]))
        plain.advance(now)
        match random.integers(4):
            case 0:
                rows, committed = int(random.integers(1, 6)), not len(plain.owners) and random.uniform() < 0.5
                meter.send(number, rows, now, committed=committed)
                plain.sent[number] = rows, committed
                if not committed:
                    plain.owners = np.append(plain.owners, np.full(rows, number))
                number += 1
            case 1:
                kept = np.flatnonzero(random.uniform(size=len(plain.owners)) < 0.6)
                accepted = min(int(random.integers(0, 3)), len(kept))
                meter.prune(prune(context, accepted, *(context + kept).tolist()), now)
                plain.owners = plain.owners[kept[accepted:]]
                context += accepted
            case 2 if plain.sent:
                plain.settled = min(plain.sent)
                meter.settle(plain.settled, now)
                del plain.sent[plain.settled]
            case _:
                meter.mark(now)
                plain.begun = now if plain.begun is None else plain.begun
                plain.marked = now - plain.begun, plain.sums
    seconds, sums = plain.marked
    assert meter.means() == (tuple(sums / seconds) if seconds > 0 else (0.0, 0.0, 0.0))
