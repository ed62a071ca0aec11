"""What is wrong with a configuration, said so that a person can mend it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from pydantic import ValidationError

from flowedge.agent.config.agent_config import section_fields
from flowedge.agent.config.toml_file import Place
from flowedge.core.errors import BadRequestError


def complain(error: ValidationError, where: Callable[[Place], str]) -> BadRequestError:
    """The error that names everything pydantic found; `where` gives the source of what is at a place."""
    found = []
    for detail in error.errors(include_url=False):
        place = detail["loc"]
        if detail["type"] == "extra_forbidden":
            reason = unknown_key(place)
        elif detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
            reason = f"{_dotted(place)} is a section; write [{place[0]}], and its settings below it"
        elif detail["type"] == "value_error" or _is_secret(place):
            reason = f"{_dotted(place)}: {_lower(detail['msg'])}"
        else:
            reason = f"{_dotted(place)} is {detail['input']!r}: {_lower(detail['msg'])}"
        found.append(f"{where(place)}: {reason}")
    return BadRequestError("; ".join(found))


def unknown_key(place: Place) -> str:
    """Why a setting that is unknown is, with the one that may have been meant."""
    sections = section_fields()
    section, key = str(place[0]), str(place[-1])
    if len(place) == 1:
        homes = [name for name, model in sections.items() if section in model.model_fields]
        return f"{section} belongs below [{homes[0]}]" if homes else unknown_section(section)
    elsewhere = [name for name, model in sections.items() if key in model.model_fields]
    if len(place) == 2 and elsewhere:
        return f"[{section}] has no setting {key}; it belongs below [{elsewhere[0]}]"
    known = sections[section].model_fields if len(place) == 2 else ()
    return f"there is no setting {_dotted(place)}{_meant(key, known)}"


def unknown_section(name: str) -> str:
    """Why a section that is unknown is, with the one that may have been meant."""
    return f"there is no section {name}{_meant(name, section_fields())}"


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(known)}" if known else ""


def _is_secret(place: Place) -> bool:
    """Whether the value there is not to be shown."""
    fields = section_fields()[str(place[0])].model_fields
    return len(place) > 1 and "Secret" in str(fields[str(place[1])].annotation)


def _dotted(place: Place) -> str:
    return ".".join(str(part) for part in place)


def _lower(message: str) -> str:
    """pydantic's words as part of a sentence."""
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
