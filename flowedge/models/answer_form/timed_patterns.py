"""Regular expressions of a checkpoint, each search of which ends within a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

_SEARCH_S = 0.2


class TimedPattern:
    """A pattern of the `regex` package; a search that takes too long raises TimeoutError."""

    def __init__(self, pattern: Any) -> None:
        self._pattern = pattern

    def search(self, text: str, pos: int = 0, *, partial: bool = False) -> Any:
        return self._pattern.search(text, pos, partial=partial, timeout=_SEARCH_S)

    def finditer(self, text: str) -> Iterator[Any]:
        return iter(self._pattern.finditer(text, timeout=_SEARCH_S))


def with_time_limit(template: Any) -> Any:
    """Return a response template of transformers whose searches end in time.

    Raises:
        ValueError: when its content is read by a pattern of its own, whose time has no limit.
    """
    for field in template.fields.values():
        if field.content == "xml-inline" and "(?:" in str(field.content_args.get("tag_pattern")):
            raise ValueError(f"the pattern of the content of {field.name} has nested groups")
    fields = {
        name: replace(field, open_re=_timed(field.open_re), close_re=_timed(field.close_re))
        for name, field in template.fields.items()
    }
    return replace(template, fields=fields, start_anchor_re=_timed(template.start_anchor_re))


def _timed(pattern: Any) -> TimedPattern | None:
    return None if pattern is None else TimedPattern(pattern)
