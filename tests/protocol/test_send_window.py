"""The window of a session: as many segments as the first stage computes while a credit is under way."""

from __future__ import annotations

import pytest

from flowedge.core.messages import StageTime
from flowedge.protocol.send_window import SendWindow


def decode(
    window: SendWindow, crossings: float, stage_s: float, segments: int, waited: float = 0.0, first: int = 0
) -> None:
    """Send segments one after the other, each when the one before has returned."""
    for number in range(first, first + segments):
        window.send(number, float(number))
        window.credit(number + crossings + waited)
        window.take_back(number, StageTime(1, stage_s, waited))


@pytest.mark.parametrize(
    ("crossings", "stage_s", "segments"),
    [(0.0, 0.06, 1), (0.002, 0.06, 1), (0.04, 0.06, 1), (0.041, 0.02, 3), (0.1, 0.001, 64)],
)
def test_a_window_is_what_the_first_stage_computes_while_a_credit_is_under_way(crossings, stage_s, segments):
    window = SendWindow()
    decode(window, crossings, stage_s, 3)
    assert window.segments == segments


def test_what_a_segment_waited_in_front_of_the_stage_is_no_crossing():
    window = SendWindow()
    decode(window, 0.001, 0.02, 5, waited=1.0)
    assert window.segments == 1


def test_the_rows_of_a_prompt_do_not_keep_the_window_small():
    window = SendWindow()
    window.send(0, 0.0)
    window.credit(0.04)
    window.take_back(0, StageTime(128, 0.5))
    assert window.segments == 1
    decode(window, 0.04, 0.01, 1, first=1)
    assert window.segments == 5


def test_a_window_follows_a_link_that_changes():
    window = SendWindow()
    decode(window, 0.0001, 0.01, 3)
    decode(window, 0.1, 0.01, 60, first=3)
    assert window.segments == 10, "nearly all of the new delay"
    decode(window, 0.0001, 0.01, 60, first=63)
    assert window.segments == 1


def test_segments_that_were_not_computed_and_credits_of_nothing_tell_nothing():
    window = SendWindow()
    window.credit(5.0)
    window.send(0, 0.0)
    window.take_back(0, StageTime(1, 0.01))
    assert window.uncredited == 1, "a credit that is late"
    window.send(1, 1.0)
    window.credit(2.0)
    window.credit(3.0)
    window.take_back(1, StageTime(0, 0.0))
    assert (window.segments, window.uncredited) == (1, 0)
