"""What is wrong with a configuration, said so that a person can correct it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from pydantic import ValidationError

from flowedge.agent.config.agent_config import SECTIONS
from flowedge.core.errors import BadRequestError

SettingPath = tuple[str | int, ...]
"""Section, key and index in an array; the index, or the key as well, may be absent."""


def complain(error: ValidationError, origin: Callable[[SettingPath], str]) -> BadRequestError:
    """Return the error that names everything pydantic found wrong, each with the origin of the value."""
    found = []
    for detail in error.errors(include_url=False):
        path = detail["loc"]
        if detail["type"] == "extra_forbidden":
            reason = _unknown(*map(str, path))
        elif detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
            reason = f"{path[0]} is a section; write [{path[0]}], and its settings below it"
        else:
            reason = SECTIONS[str(path[0])].explain(detail, path[1:])
        found.append(f"{origin(path)}: {reason}")
    return BadRequestError("; ".join(found))


def unknown_section(name: str) -> str:
    """Say that there is no section of a name, and which one may have been meant."""
    return f"there is no section {name}{_suggest(name, SECTIONS)}"


def _unknown(section: str, key: str | None = None) -> str:
    word = section if key is None else key
    homes = [name for name, group in SECTIONS.items() if word in group.model_fields]
    if key is None:
        return f"{word} belongs below [{homes[0]}]" if homes else unknown_section(word)
    if homes:
        return f"[{section}] has no setting {key}; it belongs below [{homes[0]}]"
    return f"there is no setting {section}.{key}{_suggest(key, SECTIONS[section].model_fields)}"


def _suggest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
