"""Text from outside, made safe for a terminal or a log."""

from __future__ import annotations

import json
import re

MOST_SHOWN = 4000  # characters of one field

# C0 without tab and line feed, DEL, C1, overrides and isolates of the writing direction, lone surrogates.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


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
