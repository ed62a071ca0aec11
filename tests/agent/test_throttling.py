"""An agent that is slowed down says so: in its log, its description, its metrics and its status line."""

from __future__ import annotations

import asyncio
import logging
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from flowedge.agent import throttling
from flowedge.agent.throttling import ThrottlingWatch
from flowedge.cli.screens.device_table import device_rows, device_table
from flowedge.client.survey import AgentReply, SurveyedAgent
from flowedge.core.log_fields import ATTRIBUTE
from flowedge.device.board.slowdowns import CLEAR_S, Slowdowns
from flowedge.doctor.examination import KnownAgents
from tests.client.test_survey import device
from tests.support.board_files import COOLER, cooler, write_files
from tests.support.waiting import await_that

HOT = Slowdowns(("cpufreq-cpu0", "undervoltage"))


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [getattr(record, ATTRIBUTE) for record in caplog.records if hasattr(record, ATTRIBUTE)]


def test_the_log_has_one_line_when_it_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch = ThrottlingWatch()
    for now in range(10):
        watch.take(HOT, now)
    causes = "cpufreq-cpu0, undervoltage"
    assert str(watch.state) == causes and watch.state.is_on
    for now in range(10, 10 + int(CLEAR_S)):
        watch.take(Slowdowns(), now)
    assert not watch.state.is_on and str(watch.state) == ""
    assert events(caplog) == [
        {"event": "throttled", "reason": causes},
        {"event": "throttling_ended", "seconds": 9, "reason": causes},
    ]


def test_the_files_are_looked_at_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "LOOK_S", 0.01)
    monkeypatch.setattr("flowedge.device.board.slowdowns.HOLD_S", 0.05)
    monkeypatch.setattr("flowedge.device.board.slowdowns.CLEAR_S", 0.1)
    write_files(tmp_path, cooler(0, "cpufreq-cpu0", 1))
    watch = ThrottlingWatch(tmp_path)

    async def main() -> None:
        running = asyncio.create_task(watch.run())
        await asyncio.to_thread(await_that, lambda: watch.state.is_on)
        write_files(tmp_path, {f"{COOLER}0/cur_state": 0})
        await asyncio.to_thread(await_that, lambda: not watch.state.is_on)
        running.cancel()

    asyncio.run(main())


def test_devices_and_the_doctor_name_a_device_that_is_slowed_down() -> None:
    slowed = device(1, throttled="cpufreq-cpu0")
    agents = [
        SurveyedAgent((f"10.0.0.{number}:7",), answer=AgentReply(each, 0.001, None))
        for number, each in enumerate([slowed, device(2)], start=1)
    ]
    rows = device_rows(agents)
    assert [row["throttled"] for row in rows] == ["cpufreq-cpu0", ""]
    shown = StringIO()
    Console(file=shown, width=200).print(device_table(rows))
    assert "slowed down by cpufreq-cpu0" in shown.getvalue()
    known = KnownAgents.split(agents, [])
    assert known.slowed() == [("board-1", "cpufreq-cpu0"), ("board-2", "")]
