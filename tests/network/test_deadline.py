"""Waits with a deadline: what they return, and that a cancellation always ends them."""

from __future__ import annotations

import asyncio

import pytest

from flowedge.core.errors import DeadlineError
from flowedge.network.deadline import set_within, within
from tests.support.cancelling import LONG_S, TURNS, is_cancelled


def test_within_returns_the_result_or_says_what_did_not_come() -> None:
    async def check() -> None:
        assert await within(LONG_S, asyncio.sleep(0, "here"), "it did not come") == "here"
        with pytest.raises(DeadlineError, match=r"it did not come within 0\.01 s"):
            await within(0.01, asyncio.Event().wait(), "it did not come")

    asyncio.run(check())


def test_set_within_says_whether_the_event_is_set() -> None:
    async def check() -> None:
        event = asyncio.Event()
        assert not await set_within(0.01, event)
        event.set()
        assert await set_within(LONG_S, event)

    asyncio.run(check())


@pytest.mark.parametrize("turns", TURNS)
def test_a_cancellation_ends_a_wait_whose_event_is_set_just_then(turns: int) -> None:
    async def check() -> None:
        event = asyncio.Event()
        assert await is_cancelled(set_within(LONG_S, event), event.set, turns)

    asyncio.run(check())
