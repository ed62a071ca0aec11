"""Runs a command in a terminal of a given width."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

from tests.support.processes import CLI

_COMMANDS = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[78DM])")


def run_in_terminal(
    arguments: Sequence[str], columns: int, *, timeout_s: float = 120.0, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run `flowedge` with both outputs on a terminal; return its exit code and its text without colours.

    Raises:
        TimeoutError: when it has not ended after `timeout_s` seconds; it is killed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [*CLI, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=_environment(env or {}),
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


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command in a terminal, whose width is the terminal's."""
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return {**inherited, "TERM": "xterm", **changes}


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


class Terminal:
    """`flowedge` in a terminal of its own, with somebody at the keyboard.

    Attributes:
        shown: all text so far, without colours.
    """

    def __init__(self, arguments: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self._terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.process = subprocess.Popen(
            [*CLI, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=_environment({"PROMPT_TOOLKIT_NO_CPR": "1", **(env or {})}),
            start_new_session=True,
        )
        os.close(theirs)
        self._written = b""
        self._seen = 0

    @property
    def shown(self) -> str:
        return without_colours(self._written.decode(errors="replace"))

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def expect(self, pattern: str, timeout_s: float = 60.0) -> re.Match[str]:
        """Wait for text after the text that was expected before.

        Raises:
            TimeoutError: when the text does not come.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = re.compile(pattern).search(self.shown, self._seen)
            if found:
                self._seen = found.end()
                return found
            self._read_more(deadline, pattern)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Return the exit code when the command has ended."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            self._read_more(deadline, "the end")
        return self.process.returncode

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def _read_more(self, deadline: float, awaited: str) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{awaited!r} did not come; the terminal shows {self.shown[-2000:]}")
        if select.select([self._terminal], [], [], min(left, 0.2))[0]:
            with contextlib.suppress(OSError):  # the command has closed it
                self._written += os.read(self._terminal, 1 << 16)
