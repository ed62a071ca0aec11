"""The commands that a document tells its reader to type."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"(?:^    .*\n|^\s*\n)+", re.MULTILINE)


def commands(document: str, after: str, until: str) -> list[str]:
    """Return the commands of the indented blocks between two texts of a document, without their comments.

    A line that ends in a backslash goes on in the next line.

    Args:
        document: its path from the root of the checkout.
    """
    text = _FENCED.sub("", _between(document, after, until))
    lines = "".join(_BLOCK.findall(text)).replace("\\\n", " ").splitlines()
    typed = (re.sub(r"\s{2,}#.*$", "", line).strip() for line in lines)
    return [" ".join(line.split()) for line in typed if line]


def program(document: str, after: str, until: str) -> str:
    """Return the only Python program between two texts of a document; `document` as in `commands`."""
    (found,) = _PROGRAM.findall(_between(document, after, until))
    return str(found)


def _between(document: str, after: str, until: str) -> str:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert text.count(after) == 1, f"{document} has {text.count(after)} times {after!r}"
    part = text.partition(after)[2]
    assert until in part, f"{document} has no {until!r} after {after!r}"
    return part.partition(until)[0]
