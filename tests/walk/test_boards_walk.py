"""docs/five-boards.md on booted hosts, from the cluster to the first token; `make proof` has the long "
"form."""

from __future__ import annotations

import subprocess
import sys

import pytest

from testbed.tools.nspawn.possible import why_not

LIMIT_S = 400  # on a machine that does much else; a minute on a machine that does not


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.skipif(why_not() is not None, reason=f"NOT WALKED ON SYSTEMD: {why_not()}")
def test_two_boards_join_and_answer_by_the_commands_of_the_document() -> None:
    command = [sys.executable, "-m", "testbed.tools.nspawn", "--short", "--boards", "2"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert "the walk was shown" in done.stdout
