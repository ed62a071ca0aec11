"""Others cannot fill the log."""

from __future__ import annotations

import time

from flowedge.core.log_fields import ATTRIBUTE, MAX_TEXT, about
from flowedge.core.log_rate import MAX_KINDS, LogRate, more


def test_a_few_lines_of_a_kind_are_due() -> None:
    rate = LogRate(most=2, seconds=0.2)
    assert [rate.due("a") for _ in range(5)] == [0, 0, None, None, None]
    assert rate.due("b") == 0
    time.sleep(0.25)
    assert rate.due("a") == 3
    assert more(3).startswith(" (3 more")
    assert more(0) == ""


def test_many_kinds_share_one_bound() -> None:
    rate = LogRate()
    due = [rate.due(kind) is not None for kind in range(10 * MAX_KINDS)]
    assert sum(due) == MAX_KINDS + 1


def test_fields_are_cut() -> None:
    fields = about(model="m" * (5 << 20), seconds=1.0)[ATTRIBUTE]
    assert len(fields["model"]) < MAX_TEXT + 40
    assert fields["seconds"] == 1.0
