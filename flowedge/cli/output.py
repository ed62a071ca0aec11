"""The plain lines that commands write. No text from outside commands the terminal."""

from __future__ import annotations

import io
import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len

from flowedge.core.plain_text import visible, visible_answer, visible_field
from flowedge.network.log_rate import LibraryLimit

_REPEATED_S = 8.0  # a person who sees nothing for longer wonders whether the program hangs
_log = logging.getLogger("flowedge.cli")
_logged = False  # whether lines for standard error become records of the log


def say(text: str) -> None:
    """Write a line to standard output."""
    print(visible(text), flush=True)


def say_json(content: Any) -> None:
    """Write a document of several lines to standard output; JSON escapes everything but ASCII."""
    print(json.dumps(content, indent=2))


def say_text(text: str) -> None:
    """Write a text of several lines to standard output."""
    print(visible_answer(text), end="")


def write_answer(text: str) -> None:
    """Write a part of a model's answer to standard output."""
    sys.stdout.write(visible_answer(text))
    sys.stdout.flush()


def write_control(text: str) -> None:
    """Write a text of the program's own, with what commands the terminal, to standard output."""
    sys.stdout.write(text)
    sys.stdout.flush()


def warn(text: str) -> None:
    """Write a line to standard error; a terminal gets several lines, which end between words."""
    if _logged:
        _log.warning("%s", text)
    else:
        print(_for_errors(visible_field(text)), file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """Write the error that ends the command to standard error."""
    if _logged:
        _log.error("%s", text)
    else:
        warn(f"flowedge: {text}")


def ask(question: str) -> str:
    """Ask the person at the terminal, on standard error; return the line without blanks, "" at its end."""
    print(visible(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


@contextmanager
def repeated(tell: Callable[[float], None]) -> Iterator[None]:
    """Call `tell` every few seconds with the seconds since the beginning, while the context lasts."""
    began, ended = time.monotonic(), threading.Event()

    def run() -> None:
        while not ended.wait(_REPEATED_S):
            tell(time.monotonic() - began)

    telling = threading.Thread(target=run, name="flowedge-repeated", daemon=True)
    telling.start()
    try:
        yield
    finally:
        ended.set()
        telling.join()


def log_lines() -> None:
    """Have lines for standard error become records of the log from now on, whose form programs read."""
    global _logged  # noqa: PLW0603
    _logged = True


def lines_are_logged() -> bool:
    """Return whether `log_lines` was called."""
    return _logged


class LogStream(io.StringIO):
    """A stream whose lines become records of the log."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                _log.info("%s", line)
        return len(text)


class VisibleFormatter(logging.Formatter):
    """Makes one line of each log record; a terminal gets several lines, which end between words."""

    def format(self, record: logging.LogRecord) -> str:
        return _for_errors(visible_field(super().format(record)))


def _for_errors(line: str) -> str:
    """Return a line as standard error is to show it."""
    if not sys.stderr.isatty():
        return line
    return "\n".join(wrap_words(line, shutil.get_terminal_size().columns))


@contextmanager
def errors_only() -> Iterator[None]:
    """Keep log records below the level of errors back while the context lasts."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def log_to_stderr(level: int = logging.WARNING, pattern: str = "%(message)s") -> None:
    """Have log records of this level written to standard error; pattern: of a line, as in logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(VisibleFormatter(pattern))
    handler.addFilter(LibraryLimit())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def wrap_words(text: str, width: int, indent: str = "", *, first: str | None = None) -> list[str]:
    """Return a text in lines of at most `width` columns of a terminal; only a longer word exceeds them.

    Args:
        indent: begins each line.
        first: begins the first line instead of `indent`.
    """
    lines: list[str] = []
    line = indent if first is None else first
    for word in text.split():
        if line.strip() and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = indent
        line += f" {word}" if line.strip() else word
    return [*lines, line]
