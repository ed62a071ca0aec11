"""Separates an answer, as it comes, into text, reasoning and tool calls."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flowedge.text.answer_syntax import TOOL_CALLS, AnswerSyntax

if TYPE_CHECKING:
    from flowedge.text.located_parser import LocatedParser

_CONTENT = "content"
_PLAIN = "plain"  # of CHANNELS
_REASONING = ("reasoning", "reasoning_content", "thinking")  # as families name it
_ID_LETTERS = string.ascii_letters + string.digits
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
_ID_LENGTH = 9  # which the templates of some families require
# What the parser raises by a form that is the checkpoint's own, and for JSON that is nested too deeply.
_UNREADABLE = (ValueError, KeyError, TypeError, TimeoutError, RecursionError)


@dataclass(frozen=True)
class FoundCall:
    """A tool call of an answer; `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class AnswerDelta:
    """What a piece of an answer has added."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[FoundCall, ...] = ()


class AnswerParser:
    """Takes the text of an answer piece by piece; a tool call is returned when it is complete.

    A call that is not in the form of the family is text of the answer, as the model wrote it. A call that the
    answer's limit has cut off is left out. Space between the parts belongs to no part.

    Attributes:
        calls: number of tool calls so far.
    """

    def __init__(
        self,
        form: AnswerSyntax,
        prompt: str,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        single: bool = False,
    ) -> None:
        """
        prompt: the text that the answer continues.
        tools: their JSON objects, by which arguments get their types where the form has none.
        single: whether calls after the first are left out.
        """
        # A stage needs no transformers.
        from flowedge.text.located_parser import LocatedParser  # noqa: PLC0415

        self.calls = 0
        self._single, self._cut = single, False
        self._names = [tool["function"]["name"] for tool in tools]
        self._parser: LocatedParser | None = LocatedParser(
            form.parsed, prefix=form.prefix(prompt), tools=[*map(dict, tools)]
        )
        self._texts = {_CONTENT: _Trimmed(), _REASONING[0]: _Trimmed(trims=True)}
        self._holds_text = False  # whether the open part may become text
        self._ids: set[str] = set()
        self._read(self._parser.initial_events)  # of the prompt: its parts are not the answer's
        self.calls = 0

    def feed(self, text: str) -> AnswerDelta:
        """Return what a piece of the text adds."""
        if self._parser is None:
            return AnswerDelta(self._texts[_CONTENT].push(text))
        try:
            return self._read(self._parser.feed(text))
        except _UNREADABLE:
            return self._give_up(self._parser)

    def finish(self, *, cut: bool = False) -> AnswerDelta:
        """Return what was held back, at the end of the answer.

        cut: whether the answer was cut off by its limit.
        """
        part = AnswerDelta()
        self._cut = cut
        if self._parser is not None:
            if cut and not self._holds_text:
                self._parser.drop_held()
            try:
                part = self._read(self._parser.finalize()[1])
            except _UNREADABLE:
                part = self._give_up(self._parser)
        return AnswerDelta(part.text + self._texts[_CONTENT].rest(), part.reasoning, part.calls)

    def _give_up(self, parser: LocatedParser) -> AnswerDelta:
        """Return what a parser that has failed could read, and the rest as text; what follows is text too."""
        part = self._read(parser.events)
        self._parser = None
        rest = parser.rest_of_text(from_region=self._holds_text)
        if self._holds_text and self._is_cut_call(rest):
            return part
        content = self._texts[_CONTENT]
        text = content.push_untrimmed(rest) if self._holds_text else content.push(rest)
        return AnswerDelta(part.text + text, part.reasoning, part.calls)

    def _read(self, events: Sequence[Mapping[str, Any]]) -> AnswerDelta:
        text, reasoning, calls = "", "", []
        for event in events:
            field = _REASONING[0] if event["field"] in _REASONING else event["field"]
            field = _CONTENT if field == _PLAIN else field
            match event["type"]:
                case "region_open":
                    self._holds_text = field not in self._texts
                    if field != _CONTENT:
                        self._texts[_CONTENT].trim()
                case "region_chunk" if field == _CONTENT:
                    text += self._texts[field].push(event["text"])
                case "region_chunk" if field == _REASONING[0]:
                    reasoning += self._texts[field].push(event["text"])
                case "region_close":
                    self._holds_text = False
                    found = self._new_calls(event) if field == TOOL_CALLS else []
                    if found is None and not self._is_cut_call(event["raw"]):
                        text += self._texts[_CONTENT].push_untrimmed(event["raw"])
                    else:
                        calls += found or []
        return AnswerDelta(text, reasoning, tuple(calls))

    def _is_cut_call(self, raw: str) -> bool:
        """Return whether a text that is no call begins one that the answer's limit has cut off."""
        named = _NAME.search(raw)
        return self._cut and (named is None or named[1] in self._names)

    def _new_calls(self, closed: Mapping[str, Any]) -> list[FoundCall] | None:
        """Return the calls of a field that are the answer's; None if the field holds no calls."""
        if self._cut and not closed["whole"]:
            return None
        value = closed["value"]
        found = [_call(each) for each in (value if isinstance(value, list) else [value])]
        calls = [call for call in found if call is not None]
        if not calls or len(calls) < len(found):
            return None
        if self._single:
            calls = calls[: 1 - min(self.calls, 1)]
        for place, call in enumerate(calls):
            if call.id in self._ids:
                calls[place] = replace(call, id=_new_id())
            self._ids.add(calls[place].id)
        self.calls += len(calls)
        return calls


class _Trimmed:
    """Text whose space at its ends is left out, where other parts stand beside it."""

    def __init__(self, *, trims: bool = False) -> None:
        self._trims = trims  # whether the next text begins after another part
        self._held = self._left_out = ""

    def trim(self) -> None:
        """Leave out the space here: another part begins."""
        self._trims, self._left_out, self._held = True, self._held, ""

    def push_untrimmed(self, text: str) -> str:
        """Add the text of what began as another part, with the space before it."""
        self._trims, self._held = False, self._left_out
        return self.push(text)

    def push(self, text: str) -> str:
        text = self._held + text
        if self._trims:
            text = text.lstrip()
        kept = text.rstrip()
        self._held = text[len(kept) :]
        self._trims = self._trims and not kept
        return kept

    def rest(self) -> str:
        rest, self._held = self._held, ""
        return rest


def _call(value: Any) -> FoundCall | None:
    """Return the call that a JSON value of the model describes; None if it describes none."""
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict):
        return None
    name = function.get("name")
    arguments = function.get("arguments", function.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    given = value.get("id")
    call_id = given if isinstance(given, str) and given else _new_id()
    return FoundCall(call_id, name, json.dumps(arguments, ensure_ascii=False))


def _new_id() -> str:
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
