"""Bars of transfers fit the terminal, and tell devices apart by the ends of their names."""

from __future__ import annotations

import io
import re

import pytest

from flowedge.cli.screens.tables import TerminalConsole
from flowedge.cli.screens.transfers import TransferBars
from flowedge.weights.fetch.progress import FetchProgress

_COMMANDS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NAMES = [f"kitchen-board-of-the-house-v{number}" for number in (1, 2)]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_bars_fit(width: int) -> None:
    written = io.StringIO()
    bars = TransferBars(TerminalConsole(file=written, force_terminal=True, width=width, highlight=False))
    for name in NAMES:
        bars.show(name, FetchProgress(done=1 << 27, total=3 << 30, rate=9e6, left_s=30.0))
    bars.stop()
    lines = re.split(r"[\r\n]+", _COMMANDS.sub("", written.getvalue()))
    shown = [line for line in lines if "GiB" in line]
    assert any("house-v1 " in line for line in shown)
    assert any("house-v2 " in line for line in shown)
    assert all(line.startswith("kitchen") and len(line.rstrip()) <= width for line in shown)
    assert any("0.1/3.0 GiB" in line for line in shown)
