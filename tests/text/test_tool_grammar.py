"""Grammars that force tool calls, by llguidance itself with the bundled tokenizer."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import llguidance.hf
import pytest

from flowedge.core.errors import BadRequestError
from flowedge.core.grammar import Grammar
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.text.known_syntaxes import HERMES, TAGS, TOOL_CALL_FORMATS, ToolCallFormat
from flowedge.text.tool_grammar import tool_grammar
from tests.text.test_answer_parser import TEMPLATES, rendered

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(Checkpoint.open("bundled"))


def accepts(tokenizer: Any, grammar: str, text: str) -> bool:
    vocabulary = llguidance.hf.from_tokenizer(tokenizer)
    assert not llguidance.LLMatcher.validate_grammar(grammar, vocabulary)
    matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def grammar(form: ToolCallFormat, special: dict[str, int] | None = None, **options: bool) -> str:
    chosen = {"single": False, "thinks": False, "in_thought": False, **options}
    return tool_grammar(form, TOOLS, special or {}, **chosen)


@pytest.mark.parametrize("form", [form for form in TOOL_CALL_FORMATS if "c.id" not in TEMPLATES[form.name]])
def test_only_calls_in_the_form_of_the_family_are_accepted(tokenizer: Any, form: ToolCallFormat) -> None:
    answer = rendered(form.name).removesuffix("<|/tool_call|>")
    assert accepts(tokenizer, grammar(form), answer)
    if form.several:
        assert not accepts(tokenizer, grammar(form, single=True), answer)
    for wrong in ("Hi", answer.replace("weather", "climate"), answer.replace("city", "town"), answer[:-1]):
        assert not accepts(tokenizer, grammar(form), wrong)
    if form is not TAGS:
        assert not accepts(tokenizer, grammar(form), answer.replace("3", '"three"'))


def test_white_space_of_arguments_has_an_end(tokenizer: Any) -> None:
    """It is that of answers that follow a schema: a model could write blanks for ever."""
    for blank in (" ", "\n", "  "):
        call = f'<tool_call>\n{{"name": "weather", "arguments": {{{blank}"city": "Bonn"}}}}\n</tool_call>'
        assert not accepts(tokenizer, grammar(HERMES), call)
        assert accepts(tokenizer, grammar(HERMES), call.replace("{" + blank, "{"))
        free = f'<tool_call>\n{{"name": "now", "arguments": {{{blank}"any": 1}}}}\n</tool_call>'
        assert not accepts(tokenizer, grammar(HERMES), free)
        assert accepts(tokenizer, grammar(HERMES), free.replace("{" + blank, "{"))


def test_a_thought_may_come_first(tokenizer: Any) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert accepts(tokenizer, grammar(HERMES, thinks=True), f"<think>\nWell.\n</think>\n\n{call}")
    assert accepts(tokenizer, grammar(HERMES, thinks=True), call)
    assert accepts(tokenizer, grammar(HERMES, in_thought=True), f"Well.\n</think>\n\n{call}")
    assert not accepts(tokenizer, grammar(HERMES), f"<think>\nWell.\n</think>\n\n{call}")


def test_markers_that_are_special_tokens_are_these_tokens(tokenizer: Any) -> None:
    special = {"<tool_call>": 2, "</tool_call>": 3}  # of the bundled tokenizer: <|user|> and <|assistant|>
    written = '<|user|>\n{"name": "now", "arguments": {}}\n<|assistant|>'
    assert accepts(tokenizer, grammar(HERMES, special), written)
    assert not accepts(tokenizer, grammar(HERMES, special), json.dumps(written))


@pytest.mark.parametrize("form", [HERMES, TAGS, TOOL_CALL_FORMATS[-1]], ids=lambda form: form.name)
def test_either_calls_or_an_answer_by_a_rule(tokenizer: Any, form: ToolCallFormat) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    call = rendered(form.name)
    rules = {
        Grammar.json_schema({**schema, "additionalProperties": False}): ('{"sum": 3}', '{"sum": "x"}'),
        Grammar.json_object(): ('{"a": [1]}', "[1]"),
        Grammar.regex("a/b|c"): ("a/b", "a"),
    }
    for rule, (right, wrong) in rules.items():
        either = tool_grammar(form, TOOLS, {}, single=True, thinks=False, in_thought=False, instead=rule)
        assert accepts(tokenizer, either, right)
        assert not accepts(tokenizer, either, wrong)
        if form is HERMES:
            assert accepts(tokenizer, either, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
        if not form.several:
            assert accepts(tokenizer, either, call)
    with pytest.raises(BadRequestError, match="a grammar in Lark does not go with tools"):
        tool_grammar(
            form, TOOLS, {}, single=True, thinks=False, in_thought=False, instead=Grammar.lark("start: x")
        )
