"""Commands on a pseudo-terminal, as a person sees them."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from tests.cluster.nasty_agent import FORGED
from tests.support.processes import CLI

_LIMIT_S = 120.0
_FORBIDDEN = ("\x1b]", "\x07", "\x9b", "\x1b[2J", "\u202e", "\u2066", "\u200b")


def on_terminal(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    until: Callable[[str], bool] = lambda shown: False,
    command: Sequence[str] = CLI,
) -> str:
    """Run a command on a terminal until it ends, or `until` holds; return what the terminal got."""
    near, far = pty.openpty()
    given = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", **(environment or {})}
    started = subprocess.Popen([*command, *arguments], stdin=far, stdout=far, stderr=far, env=given)
    os.close(far)
    shown = b""
    try:
        deadline = time.monotonic() + _LIMIT_S
        while not until(shown.decode("utf-8", "replace")):
            assert time.monotonic() < deadline, shown
            if select.select([near], [], [], 0.2)[0]:
                try:
                    shown += os.read(near, 1 << 16)
                except OSError:  # the other end is closed
                    break
            elif started.poll() is not None:
                break
    finally:
        started.terminate()
        started.wait(30)
        os.close(near)
    return shown.decode("utf-8", "replace")


def assert_safe(shown: str, *, answers: bool = False) -> None:
    """Hold that no text from outside commanded the terminal, or made a line of its own.

    answers: whether answers of a model are shown, which may have lines and characters without width.
    """
    for forbidden in _FORBIDDEN[: len(_FORBIDDEN) - answers]:
        assert forbidden not in shown, (forbidden, shown)
    lines = shown.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert answers or not any(line.strip().startswith(FORGED) for line in lines), shown
    assert "Traceback" not in shown, shown
