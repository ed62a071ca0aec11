"""Progress on a terminal fits it; elsewhere it is lines of text: no bar, no spinner, no control code."""

from __future__ import annotations

import io
import re

import pytest

from flowedge.cli.screens import transfers
from flowedge.cli.screens.profile_screen import profile_progress
from flowedge.cli.screens.tables import TerminalConsole
from flowedge.cli.screens.transfers import TransferBars, transfer_bars
from flowedge.weights.fetch.progress import FetchProgress
from tests.support.commands import run_command
from tests.support.terminal import CLI

_COMMANDS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NAMES = [f"kitchen-board-of-the-house-v{number}" for number in (1, 2)]


def _is_plain(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def test_transfers_are_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "_LINE_S", 0.0)
    with transfer_bars() as show:
        for done in (1, 2, 3):
            show("kitchen", FetchProgress(done=done << 20, total=3 << 20, rate=float(1 << 20)))
    out, err = capsys.readouterr()
    assert out == ""
    assert _is_plain(err)
    assert "kitchen: 2 of 3 MiB, 1.0 MiB/s" in err


def test_measuring_is_a_line_for_each_device(capsys: pytest.CaptureFixture[str]) -> None:
    with profile_progress() as show:
        for device, text in (("d0", "the LM head"), ("d0", "the drafter"), ("v1", "a layer")):
            show(device, text)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "d0: the LM head\nv1: a layer\n")


def test_doctor_writes_plain_text_into_a_pipe() -> None:
    options = ["--no-libraries", "--no-rate", "--timeout", "0.2"]
    done = run_command([*CLI, "doctor", *options])
    assert done.returncode in (0, 1, 4)
    assert _is_plain(done.stdout)
    assert done.stdout.count("\n") >= 1
    assert _is_plain(done.stderr)


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
