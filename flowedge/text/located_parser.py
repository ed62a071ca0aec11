"""transformers' response parser, which also tells what it has not read, and the text of each region."""

from __future__ import annotations

import re
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_OPEN_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*\Z')


class LocatedParser(ResponseParser):
    """A parser whose event of a region's end has the text of the region, with its markers, as "raw".

    "whole" says that the region has its end; JSON tells by itself.

    Attributes:
        events: of the last call, also of one that has failed.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self._start = 0  # of the open region
        self._ends = False  # whether a marker ends it
        self._answer_at = 0  # the prompt's end is in front
        super().__init__(*args, **options)
        self._answer_at = len(self._buffer)

    def rest_of_text(self, *, from_region: bool) -> str:
        """Return the answer's text that no event has told of.

        from_region: whether all of the open region is returned.
        """
        start = self._start if from_region else self._pos
        return str(self._buffer[max(start, self._answer_at) :])

    def drop_held(self) -> None:
        """Forget the end of the text that may be the beginning of a marker."""
        self._buffer = self._buffer[: self._pos]

    def _scan(self, watch: Any, eos: bool) -> Any:
        """Find the next marker; one within a string of JSON is text of that string."""
        best, hold_start = super()._scan(watch, eos)
        while best is not None and best[0] == "close" and best[1].content == "json":
            end = best[2].end()
            if not within_string(self._body + self._buffer[self._pos : best[2].start()]):
                break
            self._accumulate(self.events, self._buffer[self._pos : end])
            self._pos = end
            best, hold_start = super()._scan(watch, eos)
        self._ends = best is not None
        return best, hold_start

    def _process(self, events: list[dict[str, Any]], eos: bool) -> None:
        self.events = events
        super()._process(events, eos)

    def _accumulate(self, events: list[dict[str, Any]], text: str) -> None:
        if not self._opened:
            self._start = self._pos
        super()._accumulate(events, text)

    def _open_explicit(self, events: list[dict[str, Any]], field: Any, m: Any) -> None:
        self._start = m.start()
        super()._open_explicit(events, field, m)

    def _close_current(self, events: list[dict[str, Any]]) -> None:
        before, field = len(events), self._spec.fields.get(self._current or "")
        super()._close_current(events)
        for event in events[before:]:
            event["whole"] = self._ends or (field is not None and field.content == "json")
            event["raw"] = self._buffer[max(self._start, self._answer_at) : self._pos]


def within_string(text: str) -> bool:
    """Return whether a beginning of JSON ends within a string."""
    return bool(_OPEN_STRING.search(_STRING.sub("", text)))
