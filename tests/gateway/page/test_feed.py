"""What a browser is told of."""

from __future__ import annotations

import pytest

from flowedge.gateway.page.feed import Browser, _Event
from tests.support.cancelling import LONG_S, TURNS, is_cancelled
from tests.support.loops import in_loop


@pytest.mark.parametrize("turns", TURNS)
@in_loop(120.0)
async def test_a_cancellation_ends_a_browser_that_gets_an_event_just_then(turns: int) -> None:
    browser = Browser(None)
    event = _Event("activity", lambda _: "{}")
    assert await is_cancelled(browser.next(LONG_S), lambda: browser.offer(event), turns)
