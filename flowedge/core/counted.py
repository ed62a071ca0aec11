"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 stage", "2 stages"; `plural` is for nouns without a plural in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
