"""Grammars that have an answer call tools, or follow a rule instead, in the Lark dialect of llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.core.grammar import Grammar
from flowedge.text.grammar_compiler import OBJECT_STYLE, SCHEMA_STYLE
from flowedge.text.known_syntaxes import TAGS, THOUGHT, ToolCallFormat

_ANY_OBJECT = {"type": "object"}


def tool_grammar(
    form: ToolCallFormat,
    tools: Sequence[Mapping[str, Any]],
    special: Mapping[str, int],
    *,
    single: bool,
    thinks: bool,
    in_thought: bool,
    instead: Grammar | None = None,
) -> str:
    """Return the grammar of one call or several of these tools, each with the arguments of its schema.

    Args:
        form: of the calls.
        tools: JSON objects of the tools that may be called.
        special: ids of the tokenizer's special tokens by text; a grammar names them by id.
        single: whether the answer calls one tool only.
        thinks: whether the answer may begin with a thought; in_thought: whether it begins within one.
        instead: the rule of an answer without calls; None where it must have calls.

    Raises:
        BadRequestError: when the rule cannot stand beside calls.
    """
    begin = "end_of_thought " if in_thought else "thought? " if thinks else ""
    lines = [f"start: {begin}calls" if instead is None else f"start: {begin}(calls | answer)"]
    if instead is not None:
        lines.append(f"answer: {_term_of(instead)}")
    if thinks or in_thought:
        end = _quoted(THOUGHT[1])
        lines += [
            f"thought: {_quoted(THOUGHT[0])} end_of_thought",
            "end_of_thought: thinking /\\s*/",
            f"thinking[suffix={end}]: /(.|\\n)*/",
        ]
    if form is TAGS:
        return "\n".join([*lines, *_in_tags(tools, single=single)])
    if instead is not None and form.opening.startswith("{{") and not form.begin and instead.rule != "regex":
        return "\n".join([f"start: {begin}answer", *lines[2:], f"answer: {_json_of_either(tools, instead)}"])

    def text(of: str) -> str:
        return _with_special(of, special)

    more = "" if single or not form.several else f" ({text(form.between)} call)*"
    lines.append("calls: " + " ".join(filter(None, [text(form.begin), "call" + more, text(form.end)])))
    lines.append("call: " + " | ".join(f"call_{place}" for place in range(len(tools))))
    for place, tool in enumerate(tools):
        name = tool["function"]["name"]
        written = json.dumps(name, ensure_ascii=False)[1:-1]
        opening = text(form.opening.format(name=written))
        parts = [opening, f"arguments_{place}", text(form.closing)]
        lines.append(f"call_{place}: " + " ".join(filter(None, parts)))
        lines.append(f"arguments_{place}: {json_rule(_schema(tool))}")
    return "\n".join(lines)


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the term for a JSON value of a schema, in the style of answers that follow a schema."""
    own = schema.get("x-guidance")
    style = {**SCHEMA_STYLE, **own} if isinstance(own, Mapping) else SCHEMA_STYLE
    return f"%json {json.dumps({**schema, 'x-guidance': style}, ensure_ascii=False)}"


def _json_of_either(tools: Sequence[Mapping[str, Any]], rule: Grammar) -> str:
    """Return the term for a JSON object that is a call, or follows a rule, where nothing marks a call.

    Two terms that begin with the same brace could not be told apart by what comes behind it.
    """
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["function"]["name"]}, "parameters": _schema(tool)},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return json_rule({"anyOf": [*calls, json.loads(rule.text) if rule.text else _ANY_OBJECT]})


def _term_of(rule: Grammar) -> str:
    """Return the term for texts that follow a rule. Raises BadRequestError for a rule in Lark."""
    match rule.rule:
        case "json_object":
            return json_rule({**_ANY_OBJECT, "x-guidance": {"whitespace_flexible": True, **OBJECT_STYLE}})
        case "json_schema":
            return json_rule(json.loads(rule.text))
        case "regex":
            return f"/{rule.text.replace('/', chr(92) + '/')}/"
    raise BadRequestError(
        "a grammar in Lark does not go with tools that may be called; give a schema or a regular expression, "
        'or tool_choice "none"'
    )


def _schema(tool: Mapping[str, Any]) -> Any:
    return tool["function"].get("parameters") or _ANY_OBJECT


def _in_tags(tools: Sequence[Mapping[str, Any]], *, single: bool) -> list[str]:
    """Return the rules of calls whose arguments are in tags, as text: the required ones, then others."""
    lines = ["calls: call" if single else 'calls: call ("\\n" call)*']
    lines.append("call: " + " | ".join(f"call_{place}" for place in range(len(tools))))
    lines.append('value[suffix="\\n</parameter>\\n"]: /(.|\\n)*/')
    for place, tool in enumerate(tools):
        schema = _schema(tool)
        properties, required = list(schema.get("properties", {})), schema.get("required", [])
        needed = [_parameter(name) for name in properties if name in required]
        others = [_parameter(name) for name in properties if name not in required]
        optional = [f"({' | '.join(others)})*"] if others else []
        opening = _quoted(f"<tool_call>\n<function={tool['function']['name']}>\n")
        parts = [opening, *needed, *optional, _quoted("</function>\n</tool_call>")]
        lines.append(f"call_{place}: " + " ".join(parts))
    return lines


def _parameter(name: str) -> str:
    return f"({_quoted(f'<parameter={name}>' + chr(10))} value)"


def _with_special(text: str, special: Mapping[str, int]) -> str:
    """Return the terms of a text; special tokens in it are named by their ids."""
    terms: list[str] = []
    while text:
        found = [(text.find(token), -len(token), token) for token in special if token in text]
        at, _, token = min(found, default=(len(text), 0, ""))
        if at:
            terms.append(_quoted(text[:at]))
        if token:
            terms.append(f"<[{special[token]}]>")
        text = text[at + len(token) :]
    return " ".join(terms)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
