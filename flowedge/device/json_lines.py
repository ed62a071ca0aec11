"""Files with one JSON object on each line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError

_MOST_CHARACTERS = 16 << 20  # of a line, which is held in memory


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
