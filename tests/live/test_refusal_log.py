"""The log of refused streams."""

from __future__ import annotations

import logging

import pytest

from flowedge.core.errors import AccessError
from flowedge.core.log_fields import ATTRIBUTE
from flowedge.live.transport.refusal_log import EVERY_S, RefusalLog


def test_a_caller_is_logged_at_once_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log, error = RefusalLog(lambda: now[0]), AccessError("it is not the device before v1")

    def logged(caller: str = "garage") -> list[int]:
        caplog.clear()
        log.refused(caller, "InBand", error)
        return [getattr(record, ATTRIBUTE)["refused"] for record in caplog.records]

    with caplog.at_level(logging.WARNING):
        assert logged() == [1]
        assert [logged() for _ in range(99)] == [[]] * 99
        assert logged("cellar") == [1]
        now[0] = EVERY_S + 1
        assert logged() == [100]
        assert logged() == []


def test_many_callers_take_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    log, error = RefusalLog(), AccessError("no")
    with caplog.at_level(logging.CRITICAL):
        for number in range(2000):
            log.refused(f"member{number}", "InBand", error)
    assert len(log.callers) <= 256
