"""Files: paths that begin with ~, writing through to the disk, and JSON Lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError

_MOST_CHARACTERS = 16 << 20  # of a line, which is held in memory


def sync(path: Path) -> None:
    """Wait until a file, or a directory's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expand_home(text: str) -> Path:
    """Return a path in which ~ or ~USER is replaced by the home directory.

    Raises:
        BadRequestError: when there is no such user, or the user has no home directory.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        user = text.partition("/")[0]
        raise BadRequestError(
            f"{text}: the home directory of {user} is not known; write the path in full"
        ) from error


def read_json_lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("file:line number", object) of each line that is not empty.

    Raises:
        BadRequestError: when the file cannot be read, or a line is too long or not a JSON object; it names
            the line.
    """
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(_MOST_CHARACTERS + 1), ""), 1):
                where = f"{file}:{number}"
                if len(line) > _MOST_CHARACTERS:
                    raise BadRequestError(f"{where}: has more than {_MOST_CHARACTERS >> 20} Mi characters")
                if line.strip():
                    yield where, _object(line, where)
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{file}: cannot be read: {error}") from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise BadRequestError(f"{where}: not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise BadRequestError(f"{where}: not a JSON object")
    return entry
