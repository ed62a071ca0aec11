"""What the user enters: lines of standard input, or text edited in a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowedge.cli.chat.chat_commands import COMMANDS
from flowedge.core.errors import FlowEdgeError
from flowedge.device import private_files
from flowedge.device.state_dir import state_dir

PROMPT = "> "
_HISTORY = "chat-history"


def is_terminal() -> bool:
    """Return whether a person sits in front of the chat."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def lines() -> Iterator[str]:
    """Yield the lines of standard input, each a message."""
    for line in sys.stdin:
        yield line.rstrip("\r\n")


def edited() -> Iterator[str]:
    """Yield what is entered in a terminal, with history and line editing, until Ctrl-D."""
    with _keys_restored(sys.stdin.fileno()):
        session = _session()
        while True:
            try:
                yield session.prompt(PROMPT)
            except KeyboardInterrupt:  # clears what was typed
                continue
            except EOFError:
                return


@contextlib.contextmanager
def _keys_restored(terminal: int) -> Iterator[None]:
    """Keep keys that are pressed during an answer, unseen, for the next prompt; Ctrl-C stays a signal.

    A terminal that makes lines of its input would echo them into the answer, and lose a Ctrl-D.
    """
    before = termios.tcgetattr(terminal)
    kept = termios.tcgetattr(terminal)
    kept[0] &= ~termios.ICRNL
    kept[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
    termios.tcsetattr(terminal, termios.TCSANOW, kept)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


def _session() -> Any:
    from prompt_toolkit import PromptSession  # noqa: PLC0415 (only a terminal needs it)
    from prompt_toolkit.completion import WordCompleter  # noqa: PLC0415
    from prompt_toolkit.key_binding import KeyBindings  # noqa: PLC0415

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        history=_history(),
        multiline=True,  # a text that is pasted may have several lines
        key_bindings=keys,
        completer=WordCompleter([f"/{name}" for name in COMMANDS], sentence=True),
        complete_while_typing=False,
        prompt_continuation="  ",
    )


def _history() -> Any:
    """Return the history, in a private file; in memory only where the file cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory  # noqa: PLC0415

    with contextlib.suppress(OSError, FlowEdgeError):
        return FileHistory(str(_private_file()))
    return InMemoryHistory()


def _private_file() -> Path:
    directory = state_dir()
    if not directory.is_dir():
        private_files.make_directory(directory)
    path = directory / _HISTORY
    os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    return path
