"""Runs a command in a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence

CLI = [sys.executable, "-m", "flowedge.cli.main"]
_COMMANDS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_in_terminal(
    arguments: Sequence[str], columns: int, *, timeout_s: float = 120.0, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run `flowedge` with both outputs on a terminal; return its exit code and its text without colours.

    Raises:
        TimeoutError: when it has not ended after `timeout_s` seconds; it is killed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **(env or {})}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [*CLI, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        written = _read(ours, time.monotonic() + timeout_s)
        code = process.wait(timeout=10)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError("the command closed its terminal and did not end") from error
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return code, without_colours(written.decode())


def without_colours(text: str) -> str:
    """Return the text that a terminal shows, with line ends as in a file."""
    return _COMMANDS.sub("", text).replace("\r\n", "\n")


def _read(terminal: int, deadline: float) -> bytes:
    written = b""
    while True:
        if not select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError(f"the command has not ended; it wrote {written!r}")
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # EIO: nobody has the other end open any more
            return written
        if not part:
            return written
        written += part
