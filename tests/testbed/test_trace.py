"""Shares of time from overlapping intervals."""

from __future__ import annotations

import pytest

from flowedge_testbed.trace import Interval, covered, use_between


def test_covered_counts_overlaps_once() -> None:
    assert covered([]) == 0
    assert covered([(3, 4), (0, 2), (1, 2.5), (1, 1.5)]) == pytest.approx(3.5)


def test_use_between_clips_to_the_stretch() -> None:
    intervals = [
        Interval(0, "forward", 0.0, 2.0, 4),
        Interval(0, "transfer", 1.5, 3.0, 4),
        Interval(-1, "draft", 4.0, 9.0, 1),
    ]
    uses = use_between(intervals, range(-1, 2), 1.0, 5.0)
    assert (uses[0].busy, uses[0].transferring, uses[0].waiting) == (0.25, 0.25, 0.5)
    assert (uses[-1].busy, uses[-1].transferring, uses[-1].waiting) == (0.25, 0, 0.75)
    assert (uses[1].busy, uses[1].waiting) == (0, 1)
