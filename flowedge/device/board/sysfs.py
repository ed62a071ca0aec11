"""Small files by which the kernel says one thing each."""

from __future__ import annotations

import contextlib
from pathlib import Path


def text_in(file: Path) -> str:
    """Return what a file holds, without the line's end; "" where there is none that can be read."""
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    return ""


def number_in(file: Path) -> int | None:
    """Return the integer that a file holds; None where there is none."""
    text = text_in(file)
    return int(text) if text.removeprefix("-").isdecimal() else None
