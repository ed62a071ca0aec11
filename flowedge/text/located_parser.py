"""transformers' response parser, which also tells what it has not read, and the text of each region."""

from __future__ import annotations

from typing import Any

from transformers.utils.chat_parsing import ResponseParser


class LocatedParser(ResponseParser):
    """A parser whose event of a region's end has the text of the region, with its markers, as "raw".

    Attributes:
        events: of the last call, also of one that has failed.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self._start = 0  # of the open region
        self._answer_at = 0  # the prompt's end is in front
        super().__init__(*args, **options)
        self._answer_at = len(self._buffer)

    def rest_of_text(self, *, from_region: bool) -> str:
        """Return the answer's text that no event has told of.

        from_region: whether all of the open region is returned.
        """
        start = self._start if from_region else self._pos
        return str(self._buffer[max(start, self._answer_at) :])

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
        before = len(events)
        super()._close_current(events)
        for event in events[before:]:
            event["raw"] = self._buffer[max(self._start, self._answer_at) : self._pos]
