"""What a terminal of 60 columns shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.terminal import run_in_terminal

COLUMNS = 60
GENERATE = ("generate", "--model", "bundled", "--stages", "2")


def shown(home: Path, *arguments: str) -> str:
    """Return what a command shows, which has to succeed and to fit."""
    own = {"HOME": str(home), "FLOWEDGE_STATE_DIR": str(home / "state")}
    code, text = run_in_terminal(arguments, COLUMNS, env=own)
    assert code == 0, text
    assert all(len(line) <= COLUMNS for line in text.splitlines()), text
    return text


def test_the_overview_names_the_first_commands(tmp_path: Path) -> None:
    overview = shown(tmp_path)
    assert 5 <= len(overview.splitlines()) <= 14
    assert "flowedge demo" in overview
    assert "flowedge chat" in overview
    assert "--help" in overview


def test_help_names_each_option_whole_and_cuts_nothing(tmp_path: Path) -> None:
    page = shown(tmp_path, "generate", "--help")
    assert "…" not in page
    assert "<bool>" not in page
    for option in ("--max-new-tokens", "--prompt-file", "--temperature", "--cluster-dir"):
        assert re.search(rf"^ *{option}\b", page, re.MULTILINE), page


@pytest.mark.proof
def test_an_answer_and_its_table_fit(tmp_path: Path) -> None:
    text = shown(tmp_path, *GENERATE, "--max-new-tokens", "8", "--prompt", "Hello", "--check")
    assert "identical" in text
    devices = re.findall(r"^local-[0-9a-f]{6}-(d0|v1|v2) +[0-9]+%", text, re.MULTILINE)
    assert devices == ["d0", "v1", "v2"], text
