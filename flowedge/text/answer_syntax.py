"""The form of a model's answers: where reasoning, tool calls and text begin and end."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.text.known_syntaxes import (
    CHANNELS,
    CONTENT,
    REASONING,
    THOUGHT,
    ToolCallFormat,
    has_channels,
)

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


TOOL_CALLS = "tool_calls"
_WHOLE_PREFIX = {"start_anchor_pattern": r"\A"}


@dataclass(frozen=True, eq=False)
class AnswerSyntax:
    """What transformers' response parser reads an answer by.

    Attributes:
        spec: the response template.
        needs_prompt: whether the parser takes the whole prompt; otherwise the end from an open thought on.
        parsed: the compiled template.
    """

    spec: Mapping[str, Any]
    needs_prompt: bool
    parsed: Any

    def prefix(self, prompt: str) -> str:
        """Return the part of the prompt's text that the answer continues."""
        if self.needs_prompt:
            return prompt
        return prompt[prompt.rindex(THOUGHT[0]) :] if opens_thought(prompt) else ""

    def markers(self, texts: Iterable[str]) -> list[str]:
        """Return those texts of special tokens that the form looks for."""
        fields = json.dumps(self.spec, ensure_ascii=False)
        return [text for text in texts if _in_json(text) in fields or _in_json(re.escape(text)) in fields]


def opens_thought(prompt: str) -> bool:
    """Return whether a prompt ends in a thought that the answer goes on with."""
    _, opened, rest = prompt.rpartition(THOUGHT[0])
    return bool(opened) and THOUGHT[1] not in rest and not rest.strip()


def answer_syntax(template: str, own: Any, calls: ToolCallFormat | None, place: str) -> AnswerSyntax | None:
    """Return the form of the answers of a model; None where all of an answer is its text.

    Args:
        template: the chat template.
        own: the tokenizer's own response template; None if there is none, or it is not to be used.
        calls: the form of the tool calls; None where none is looked for.
        place: the directory of the tokenizer, to name in errors.

    Raises:
        CheckpointError: when the tokenizer's own response template is malformed.
    """
    if own:
        return _syntax_of_checkpoint(json.dumps(own, sort_keys=True), place)
    fields: dict[str, Any] = {}
    if has_channels(template):
        fields = {**CHANNELS}
    elif THOUGHT[1] in template:
        fields["reasoning"] = REASONING
    if calls is not None:
        fields[TOOL_CALLS] = calls.field
    if not fields:
        return None
    return _compiled(json.dumps({**_WHOLE_PREFIX, "fields": {"content": CONTENT, **fields}}))


@functools.lru_cache(maxsize=32)
def _compiled(text: str) -> AnswerSyntax:
    return AnswerSyntax(json.loads(text), needs_prompt=False, parsed=_load(json.loads(text)))


@functools.lru_cache(maxsize=8)
def _syntax_of_checkpoint(text: str, place: str) -> AnswerSyntax:
    spec = json.loads(text)
    try:
        return AnswerSyntax(spec, needs_prompt=True, parsed=with_time_limit(_load(spec)))
    # The template is data of the checkpoint, and of any shape.
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise CheckpointError(
            f"the response template of {place} cannot be used: {error}; correct it, or give another tokenizer"
        ) from error


def _load(spec: dict[str, Any]) -> Any:
    from transformers.utils.chat_parsing.response_templates import (  # noqa: PLC0415 (a stage needs none)
        load_response_template,
    )

    return load_response_template(spec)


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
