"""A configuration file, and where in it a setting stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from flowedge.core.errors import BadRequestError

Place = Sequence[str | int]  # section, key, and what lies deeper; an int is an index of an array


@dataclass(frozen=True)
class TomlFile:
    """What a file says, with its text."""

    path: Path
    text: str
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> TomlFile:
        """BadRequestError when the file cannot be read or is no TOML, with the place."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise BadRequestError(f"the configuration {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise BadRequestError(f"{path}:{line}: not UTF-8; save the file in it") from error
        text = text.replace("\r\n", "\n")
        try:
            values = tomli.loads(text)
        except tomli.TOMLDecodeError as error:
            raise BadRequestError(f"{path}:{error.lineno}:{error.colno}: {error.msg}") from error
        return cls(path, text, values)

    def where(self, place: Place) -> str:
        """ "path:line:column" of the key that a place ends with, or of the nearest that holds it."""
        for depth in range(len(place), 0, -1):
            if holds(self.values, place[:depth]):
                line, column = self._position(place[:depth])
                return f"{self.path}:{line}:{column}"
        return str(self.path)

    def _position(self, place: Place) -> tuple[int, int]:
        """From 1. The parser is asked after each line, so that nothing here has to know its grammar."""
        lines = self.text.split("\n")
        first = 0  # line at which the statement being read starts
        for count in range(1, len(lines) + 1):
            try:
                values = tomli.loads("\n".join(lines[:count]))
            except tomli.TOMLDecodeError:  # inside a value that goes on
                continue
            if holds(values, place):
                break
            first = count
        key = next((part for part in reversed(place) if isinstance(part, str)), "")
        return first + 1, max(lines[first].find(key), 0) + 1


def holds(values: Any, place: Place) -> bool:
    """Whether nested tables and arrays have something at a place."""
    for part in place:
        if isinstance(values, Mapping):
            if part not in values:
                return False
        elif not (isinstance(values, list) and isinstance(part, int) and part < len(values)):
            return False
        values = values[part]
    return True
