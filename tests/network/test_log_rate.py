"""The bound on log lines that others cause."""

from __future__ import annotations

import logging

from flowedge.network.log_rate import LINES, MAX_KINDS, MINUTE_S, LibraryLimit, LogRate


def test_a_kind_is_logged_at_once_and_then_once_a_minute_with_the_number_left_out() -> None:
    now = [0.0]
    rate = LogRate(clock=lambda: now[0])
    assert rate.due("garage") == 0
    assert [rate.due("garage") for _ in range(99)] == [None] * 99
    assert rate.due("cellar") == 0
    now[0] = MINUTE_S
    assert rate.due("garage") == 99
    assert rate.due("garage") is None


def test_several_lines_of_a_kind() -> None:
    rate = LogRate(most=3, clock=lambda: 0.0)
    assert [rate.due("a") for _ in range(5)] == [0, 0, 0, None, None]


def test_many_kinds_take_no_memory_and_few_lines() -> None:
    rate = LogRate(clock=lambda: 0.0)
    lines = sum(rate.due(number) is not None for number in range(10 * MAX_KINDS))
    assert lines <= MAX_KINDS + 1
    assert rate.kinds <= MAX_KINDS + 1


def test_lines_of_libraries_are_bounded_and_those_of_flowedge_are_not() -> None:
    now = [0.0]
    limit = LibraryLimit(clock=lambda: now[0])

    def line(name: str, number: int) -> logging.LogRecord:
        text = "Invalid encoding on %s"
        return logging.LogRecord(name, logging.ERROR, "x.py", 1, text, (number,), None)

    passed = [line("grpc._cython.cygrpc", number) for number in range(2560)]
    passed = [record for record in passed if limit.filter(record)]
    assert [record.getMessage() for record in passed] == [f"Invalid encoding on {n}" for n in range(LINES)]
    assert limit.filter(line("asyncio", 0))
    assert all(limit.filter(line("flowedge.live", number)) for number in range(100))
    now[0] = MINUTE_S
    last = line("grpc._cython.cygrpc", 7)
    assert limit.filter(last)
    assert last.getMessage() == "Invalid encoding on 7 (2550 more like this since the last such line)"
