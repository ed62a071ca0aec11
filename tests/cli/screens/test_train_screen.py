"""The progress of a training: the time that is left is known, and a log gets lines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pytest

from flowedge.cli.screens.train_screen import train_screen
from flowedge.training.state import TrainingProgress


def written_to_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a training of 5 minutes writes after its first update, which took 2, on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with train_screen(Path("head")) as screen:
            screen.step(TrainingProgress(step=1, spent_s=120.0, tokens=2048), 120 / 300)
    written = b""
    with contextlib.suppress(OSError):  # at the end, when nobody has the terminal open
        while part := os.read(ours, 1 << 16):
            written += part
    os.close(ours)
    return written.decode()


def test_the_time_that_is_left_is_known_after_the_first_update(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "3 min left" in written_to_terminal(120, monkeypatch)


def test_a_terminal_without_columns_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = written_to_terminal(0, monkeypatch)
    assert "\x1b" not in text
    assert "training: 40 %, step 1, CE 0.00, agreed 0.00, 3 min left" in text
