"""Text for people: valid UTF-8, without commands to a terminal, and with numbers before their nouns."""

from __future__ import annotations

import json
import re

from flowedge.core.errors import BadRequestError

MOST_SHOWN = 4000  # characters of one field

# C0 without tab and line feed, DEL, C1, overrides and isolates of the writing direction, lone surrogates.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def checked_utf8(text: str, name: str) -> str:
    """Return a text as it is; `name` says in an error what the text is.

    Raises:
        BadRequestError: when UTF-8 cannot encode the text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        # Python holds bytes of the command line and of file names that are not UTF-8 as these.
        shown = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"U+{code:04X}"
        raise BadRequestError(
            f"{name} is not valid UTF-8: its character {error.start + 1} is {shown}; convert it to UTF-8"
        ) from error
    return text


def visible(text: str) -> str:
    """Return a text as one line of printable characters; others are escaped as in JSON, such as \\u001b.

    A terminal obeys control characters and escape sequences. Characters that change the direction of writing,
    have no width or break the line make a text look like another text.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def visible_field(text: str, most: int = MOST_SHOWN) -> str:
    """Return `visible` of a text, cut to `most` characters of it."""
    return visible(text if len(text) <= most else text[:most] + "…")


def visible_answer(text: str) -> str:
    """Return the text of a model for a terminal: lines, tabs and all scripts stay, commands are escaped."""
    return _COMMANDS.sub(lambda found: json.dumps(found[0])[1:-1], text)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 stage", "2 stages"; `plural` is for nouns without a plural in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
