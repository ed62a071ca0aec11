"""The overhead benchmark runs and its figures are plausible; their size is not asserted."""

from __future__ import annotations

import pytest

from testbed.tools.overhead.draft_work import LAYER, RESULT, VERIFIED, measure_draft_work
from testbed.tools.overhead.hop import measure_hop


def test_a_hop_is_timed_between_two_processes() -> None:
    times = measure_hop(rows=4, width=64, hops=5, warm_up=1)
    assert len(times.seconds) == 5
    assert 0 < times.quantile(0.5) <= times.quantile(0.99)
    assert times.frame_bytes > 4 * 64 * 2


def test_the_draft_nodes_own_work_is_counted() -> None:
    work = measure_draft_work("auto", new_tokens=30)
    for kind, part in ((RESULT, "take in result"), (VERIFIED, "prune"), (LAYER, "strategy")):
        events = work[kind]
        assert events.count > 0
        assert sum(events.parts.values()) == pytest.approx(events.seconds)
        assert events.parts[part] > 0
