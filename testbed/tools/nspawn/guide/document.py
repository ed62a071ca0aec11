"""What documents have their readers do: a document that changes changes the proof."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from flowedge.core.errors import BadRequestError

FIVE_BOARDS = Path("docs") / "five-boards.md"
GATEWAY = Path("docs") / "gateway.md"
_BLOCK = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_SETTINGS = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+#.*")

Settings: TypeAlias = dict[str, dict[str, str]]
"""The values of a configuration file by section and key, as TOML text."""


@dataclass(frozen=True)
class Document:
    """The sections of a document, by their headings without numbers."""

    file: Path
    sections: Mapping[str, str]

    @classmethod
    def read(cls, checkout: Path, file: Path = FIVE_BOARDS) -> Document:
        text = (checkout / file).read_text(encoding="utf-8")
        parts = re.split(r"^## (?:\d+\. )?(.*)\n", text, flags=re.MULTILINE)
        return cls(file, dict(zip(parts[1::2], parts[2::2], strict=True)))

    def commands(self, heading: str, block: int = 0) -> list[str]:
        """Return the commands of a block of a section, without comments.

        block: number of the block in its section, from 0 on.

        Raises:
            BadRequestError: when the document has no such section or block.
        """
        blocks = _BLOCK.findall(self._section(heading))
        if block >= len(blocks):
            raise BadRequestError(f"{self.file}: section {heading!r} has {len(blocks)} blocks of commands")
        lines = (_COMMENT.sub("", line).strip() for line in blocks[block].splitlines())
        return [line for line in lines if line]

    def settings(self, heading: str) -> Settings:
        """Return the settings that a section shows.

        Raises:
            BadRequestError: when the document has no such section, or the section has no settings.
        """
        found = _SETTINGS.search(self._section(heading))
        if found is None:
            raise BadRequestError(f"{self.file}: section {heading!r} shows no settings")
        settings: Settings = {}
        for line in found[1].splitlines():
            key, _, value = line.partition(" = ")
            if value:
                settings[next(reversed(settings))][key] = value
            elif line:
                settings[line.strip("[]")] = {}
        return settings

    def _section(self, heading: str) -> str:
        if heading not in self.sections:
            raise BadRequestError(f"{self.file} has no section {heading!r}, but {', '.join(self.sections)}")
        return self.sections[heading]


def with_settings(text: str, settings: Settings) -> str:
    """Return the text of a configuration file with some settings set, as a person would edit it.

    Raises:
        BadRequestError: when the file has no line for a setting, not even a comment.
    """
    for section, values in settings.items():
        for key, value in values.items():
            line = re.compile(rf"(^\[{section}\]$(?:\n(?!\[).*)*?\n)#?{key} = .*", re.MULTILINE)
            found = line.search(text)
            if found is None:
                raise BadRequestError(f"the configuration file has no setting {section}.{key}")
            text = f"{text[: found.end(1)]}{key} = {value}{text[found.end() :]}"
    return text
