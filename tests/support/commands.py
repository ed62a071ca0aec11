"""Programs that a test runs to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

HANG_S = 120.0


def run_command(
    command: Sequence[str], *, check: bool = False, timeout: float = HANG_S, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return its exit status and what it wrote.

    timeout: seconds, after which the program is killed and the test fails; options: of subprocess.run.
    """
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=timeout, **options)
