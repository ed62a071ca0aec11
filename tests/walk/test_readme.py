"""README's ten minutes on one machine: what it tells a reader to type is typed, and does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.walk.documents import ROOT, commands
from tests.walk.machine import UserMachine

README = "README.md"


@pytest.fixture
def user(tmp_path: Path) -> UserMachine:
    return UserMachine(tmp_path)


def test_flowedge_is_imported_in_the_folder_that_holds_the_clone(tmp_path: Path) -> None:
    (tmp_path / "flowedge").symlink_to(ROOT)
    program = "import flowedge; print(flowedge.Client.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Client\n"


def test_one_machine(user: UserMachine) -> None:
    streamed, checked = commands(README, "**One machine.**", "**Several boards.**")
    assert "reverse" in user.works(streamed).out
    assert "identical" in user.works(checked).err
