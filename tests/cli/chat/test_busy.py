"""How busy the devices are, from a pipeline's activity, and what the live line keeps of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flowedge.cli.chat import talk
from flowedge.cli.chat.busy import BusyIndicator, BusyShares
from flowedge.client.activity import ComputedSegment, LinkState, PipelineActivity, PipelineState
from flowedge.core.errors import CapacityError
from tests.support.terminal import without_colours

LINKS = (LinkState("desk", "attic-workstation", 0, 0, 0), LinkState("attic-workstation", "desk", 0, 0, 0))
STATE = PipelineState(1, 0, 20.0, 3.1, LINKS)


def computed(device: str, start: float, end: float) -> ComputedSegment:
    return ComputedSegment("s", device, "decode", start, end, 1)


def test_shares_are_of_the_last_two_seconds() -> None:
    busy = BusyShares()
    busy.add(PipelineActivity(10.0, STATE))
    assert (busy.shares(), busy.text()) == ({}, "")
    attic = "attic-workstation"
    busy.add(PipelineActivity(11.0, None, (computed(attic, 10.0, 10.5), computed(attic, 10.25, 10.75))))
    assert busy.shares() == {"desk": 0.0, attic: 0.75}
    busy.add(PipelineActivity(12.5, None, (computed("desk", 12.0, 12.5),)))
    assert busy.shares() == {"desk": 0.25, attic: 0.125}
    assert busy.text() == "desk 25% attic-workst 12%"
    assert busy.tokens_per_segment == 3.1
    busy.add(PipelineActivity(20.0))
    assert busy.shares() == {"desk": 0.0, attic: 0.0}


def test_names_that_begin_alike_are_told_apart() -> None:
    busy = BusyShares()
    links = (LinkState("board-1", "board-2", 0, 0, 0), LinkState("board-2", "board-1", 0, 0, 0))
    busy.add(PipelineActivity(10.0, PipelineState(1, 0, 20.0, 3.1, links)))
    busy.add(PipelineActivity(11.0, None, (computed("board-2", 10.0, 10.5),)))
    assert busy.text() == "1 0% 2 50%"


def test_a_watch_that_fails_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Full:
        def watch(self) -> Iterator[PipelineActivity]:
            yield PipelineActivity(10.0, STATE)
            raise CapacityError("8 watch already")

    full: Any = Full()
    watch = BusyIndicator(full)
    with caplog.at_level("INFO"), watch.running():
        for thread in threading.enumerate():
            if thread.name == "flowedge-busy":
                thread.join(10.0)
        assert watch.figures() == (0.0, "")
    assert [record.message for record in caplog.records] == ["the devices are not shown: 8 watch already"]


def test_the_line_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    written: list[str] = []
    talk.LiveLine(written.append, shown=True).show("9 tokens   desk 25% attic 80%")
    assert without_colours(re.sub(r"[\r]", "", "".join(written))) == "9 tokens   desk 25%"
