"""Prompts from the command line, from files and from standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flowedge.cli.output import warn
from flowedge.core.errors import BadRequestError
from flowedge.core.plain_text import checked_utf8
from flowedge.device.files import read_json_lines

STANDARD_INPUT = "-"
_MOST_BYTES = 16 << 20  # of a text that is one prompt
_SOURCES = "--prompt TEXT, --prompt - (standard input), --prompt-file FILE or --prompts FILE.jsonl"


def _standard_input() -> BinaryIO:
    if sys.stdin.isatty():
        warn("reading the prompt from the terminal; Ctrl-D on a line of its own ends it")
    return sys.stdin.buffer


@dataclass(frozen=True)
class PromptSources:
    """Where the command line says that the prompts are.

    Attributes:
        prompt: the text of one prompt, or "-" for standard input.
        prompt_file: a file that is one prompt as a whole; "-" for standard input.
        prompts: a file of JSON lines, of which the first `limit` are used.
    """

    prompt: str | None = None
    prompt_file: Path | None = None
    prompts: Path | None = None
    limit: int | None = None

    def read(self, standard_input: Callable[[], BinaryIO] = _standard_input) -> list[str]:
        """Return the prompts.

        Raises:
            BadRequestError: when not exactly one source is given, the limit has no file to count in, or a
                prompt is empty or not UTF-8.
        """
        given = [source for source in (self.prompt, self.prompt_file, self.prompts) if source is not None]
        if len(given) != 1:
            count = "no prompt is given" if not given else f"{len(given)} sources of prompts are given"
            raise BadRequestError(f"{count}; give one of {_SOURCES}")
        if self.limit is not None and self.prompts is None:
            raise BadRequestError("--limit counts the prompts of --prompts FILE.jsonl, which is not given")
        if self.prompts is not None:
            return read_prompt_lines(self.prompts)[: self.limit]
        if STANDARD_INPUT in (self.prompt, str(self.prompt_file)):
            return [_usable(_read("standard input", standard_input()), "standard input")]
        if self.prompt_file is not None:
            return [_usable(_read_file(self.prompt_file), str(self.prompt_file))]
        return [_usable(self.prompt, "--prompt")]


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _read(str(path), file)
    except OSError as error:
        raise BadRequestError(f"--prompt-file {path}: cannot be read: {error.strerror}") from error


def _read(where: str, file: BinaryIO) -> str:
    """Return a text as a whole, without the line break at its end."""
    content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise BadRequestError(f"{where}: has more than {_MOST_BYTES >> 20} MiB; give a shorter prompt")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadRequestError(
            f"{where}: byte 0x{content[error.start]:02x} in line {line} is not UTF-8; convert the text"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")


def read_prompt_lines(file: Path) -> list[str]:
    """Return the prompts of a file of JSON lines, each with "prompt" or with "turns".

    Raises:
        BadRequestError: when there is no prompt, or a line is wrong; it names the line.
    """
    return [messages[0] for messages in read_message_lines(file, 1)]


def read_message_lines(file: Path, most: int) -> list[tuple[str, ...]]:
    """Return the user's first `most` messages of each line of a file of JSON lines, with "prompt" or "turns".

    Raises:
        BadRequestError: when there is no prompt, or a line is wrong; it names the line.
    """
    lines = [
        tuple(_usable(message, where) for message in _messages_of(entry, where)[:most])
        for where, entry in read_json_lines(file)
    ]
    if not lines:
        raise BadRequestError(f"{file}: the file has no prompt")
    return lines


def _messages_of(entry: dict[str, Any], where: str) -> list[Any]:
    """Return "prompt" of an object as its only message, or its "turns"."""
    if "prompt" in entry:
        return [entry["prompt"]]
    turns = entry.get("turns")
    if isinstance(turns, list) and turns:
        return turns
    raise BadRequestError(f'{where}: the object has neither "prompt" nor "turns"')


def _usable(prompt: Any, where: str) -> str:
    if not isinstance(prompt, str):
        raise BadRequestError(f"{where}: the prompt is not text")
    if not prompt.strip():
        raise BadRequestError(f"{where}: the prompt is empty")
    return checked_utf8(prompt, f"{where}: the prompt")
