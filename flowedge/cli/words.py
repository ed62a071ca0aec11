"""Text in lines that are broken between words only."""

from __future__ import annotations

from rich.cells import cell_len


def wrap_words(text: str, width: int, indent: str = "", *, first: str | None = None) -> list[str]:
    """Return a text in lines of at most `width` columns of a terminal; only a longer word exceeds them.

    Args:
        indent: begins each line.
        first: begins the first line instead of `indent`.
    """
    lines: list[str] = []
    line = indent if first is None else first
    for word in text.split():
        if line.strip() and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = indent
        line += f" {word}" if line.strip() else word
    return [*lines, line]
