"""A task that has to run goes on after any error."""

from __future__ import annotations

import asyncio
import logging

import pytest

from flowedge.network.log_rate import LINES, MINUTE_S, LimitedLog
from flowedge.network.supervision import supervise


def test_any_error_is_logged_and_the_task_goes_on_after_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses: list[float] = []
    errors: list[Exception] = [KeyError("a"), RecursionError(), AssertionError("c"), UnicodeError("d")]

    async def run() -> None:
        if errors:
            raise errors.pop(0)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    asyncio.run(supervise("the keeper", run, first_s=1.0, most_s=4.0, sleep=sleep))
    assert pauses == [1.0, 2.0, 4.0, 4.0]
    assert caplog.records[0].getMessage() == "the keeper failed; next attempt in 1 s"
    assert all(record.exc_info for record in caplog.records)


def test_a_cancellation_ends_it() -> None:
    async def cancelled() -> bool:
        task = asyncio.create_task(supervise("the keeper", asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(cancelled())


def test_lines_are_bounded_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = LimitedLog(logging.getLogger("test"), "ignored", clock=lambda: now)
    for number in range(LINES + 90):
        log.add(f"line {number}")
    assert len(caplog.records) == LINES
    now = MINUTE_S
    log.add("another")
    assert [record.getMessage() for record in caplog.records[LINES:]] == [
        "another (90 more like this since the last such line)"
    ]
