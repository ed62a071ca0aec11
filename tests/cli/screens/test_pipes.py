"""Where there is no terminal, progress is lines of text: no bar, no spinner, no control code."""

from __future__ import annotations

import subprocess

import pytest

from flowedge.cli.screens import transfers
from flowedge.cli.screens.profile_screen import profile_progress
from flowedge.cli.screens.transfers import transfer_bars
from flowedge.weights.fetch.progress import FetchProgress
from tests.support.terminal import CLI


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
    done = subprocess.run(
        [*CLI, "doctor", *options], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 1, 4)
    assert _is_plain(done.stdout)
    assert done.stdout.count("\n") >= 1
    assert _is_plain(done.stderr)
