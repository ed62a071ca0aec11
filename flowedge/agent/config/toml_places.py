"""Where in a TOML file a setting stands."""

from __future__ import annotations

import re
from collections.abc import Mapping

SettingPath = tuple[str | int, ...]
"""Section, key and index in an array; the index, or the key as well, may be absent."""

_MULTI_LINE_STRING = re.compile(r"\"\"\".*?\"\"\"|'''.*?'''", re.DOTALL)
_HEADER_OR_KEY = re.compile(r"""\s*(\[*)[\s\w."'-]+[]=]""")


def find_places(text: str) -> Mapping[SettingPath, str]:
    """Return the "line:column" of each section header and each key that begins a line, counted from 1.

    Keys inside an inline table are not found.
    """
    text = _MULTI_LINE_STRING.sub(lambda string: "\n" * string[0].count("\n"), text)
    places: dict[SettingPath, str] = {}
    section: SettingPath = ()
    for number, line in enumerate(text.split("\n"), 1):
        if begun := _HEADER_OR_KEY.match(line):
            path = () if begun[1] else section
            for word in re.finditer(r"[\w-]+", begun[0]):
                path = (*path, word[0])
                places.setdefault(path, f"{number}:{word.start() + 1}")
            section = path if begun[1] else section
    return places
