"""The form of a model's answers: where reasoning, tool calls and text begin and end."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.answer_form.known_forms import CONTENT, REASONING, THOUGHT, CallForm
from flowedge.models.answer_form.timed_patterns import with_time_limit

TOOL_CALLS = "tool_calls"
_WHOLE_PREFIX = {"start_anchor_pattern": r"\A"}


@dataclass(frozen=True, eq=False)
class AnswerForm:
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


def answer_form(template: str, own: Any, calls: CallForm | None, place: str) -> AnswerForm | None:
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
        return _own_form(json.dumps(own, sort_keys=True), place)
    fields: dict[str, Any] = {}
    if THOUGHT[1] in template:
        fields["reasoning"] = REASONING
    if calls is not None:
        fields[TOOL_CALLS] = calls.field
    if not fields:
        return None
    return _compiled(json.dumps({**_WHOLE_PREFIX, "fields": {**fields, "content": CONTENT}}))


@functools.lru_cache(maxsize=32)
def _compiled(text: str) -> AnswerForm:
    return AnswerForm(json.loads(text), needs_prompt=False, parsed=_load(json.loads(text)))


@functools.lru_cache(maxsize=8)
def _own_form(text: str, place: str) -> AnswerForm:
    spec = json.loads(text)
    try:
        return AnswerForm(spec, needs_prompt=True, parsed=with_time_limit(_load(spec)))
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
