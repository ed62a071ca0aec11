"""What an answer's text must be, by the names that OpenAI, vLLM and SGLang give it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from flowedge.client import Grammar
from flowedge.gateway.answers.body import BodyObject, refused_value
from flowedge.gateway.answers.closed_schema import schema_grammar
from flowedge.gateway.errors import ApiError

MAX_CHOICES = 1024
Choices: TypeAlias = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
Schema: TypeAlias = dict[str, Any] | str
"""A JSON schema, or its text."""


class SchemaFormat(BodyObject):
    """A JSON schema; without `schema`, any JSON object.

    Attributes:
        strict: answers follow the schema in any case.
    """

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BodyObject):
    """`response_format` of OpenAI."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    def grammar(self) -> Grammar | None:
        """Return what the answer must be; None for any text.

        Raises:
            ApiError: when the schema is missing.
        """
        if self.type == "json_schema" and self.json_schema is None:
            name = "response_format.json_schema"
            raise ApiError(400, f"{name} is missing", param=name, code="missing_required_parameter")
        return grammar_of(self.type, self.json_schema.schema_ if self.json_schema else None)


class StructuredOutputs(BodyObject):
    """`structured_outputs` of vLLM: one of these."""

    json_: Schema | None = Field(default=None, alias="json")
    json_object: bool = False
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None


class StructureFields(BodyObject):
    """The parameters of a body that say what the answer must be, of which one at most is given.

    Attributes:
        guided_json, guided_regex, guided_choice, guided_grammar: as older versions of vLLM have them.
        regex, ebnf, json_schema: as SGLang has them.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: Schema | None = None

    def structure(self) -> tuple[str, Grammar | None]:
        """Return the parameter that says what the answer must be, and the rule; None for any text.

        Raises:
            ApiError: when there are two, or one is malformed.
        """
        found = [(name, rule) for name, rule in self._structures() if rule is not None]
        if len(found) > 1:
            both = f"{found[0][0]} and {found[1][0]}"
            raise refused_value(found[1][0], f"{both} both say what the answer must be; give one of them")
        return found[0] if found else ("response_format", None)

    def _structures(self) -> Iterator[tuple[str, Grammar | None]]:
        yield "response_format", self.response_format.grammar() if self.response_format else None
        yield "guided_json", _by_schema("guided_json", self.guided_json)
        yield "json_schema", _by_schema("json_schema", self.json_schema)
        yield "guided_regex", _by_regex(self.guided_regex)
        yield "regex", _by_regex(self.regex)
        yield "guided_choice", _by_choice(self.guided_choice)
        yield "guided_grammar", _by_grammar("guided_grammar", self.guided_grammar)
        yield "ebnf", _by_grammar("ebnf", self.ebnf)
        given = self.structured_outputs
        if given is not None:
            name = "structured_outputs"
            yield f"{name}.json", _by_schema(f"{name}.json", given.json_)
            yield f"{name}.json_object", Grammar.json_object() if given.json_object else None
            yield f"{name}.regex", _by_regex(given.regex)
            yield f"{name}.choice", _by_choice(given.choice)
            yield f"{name}.grammar", _by_grammar(f"{name}.grammar", given.grammar)


def grammar_of(kind: str, schema: dict[str, Any] | None) -> Grammar | None:
    """Return what an answer of a format must be; None for any text."""
    if kind == "text":
        return None
    return Grammar.json_object() if schema is None else schema_grammar(schema)


def _by_schema(name: str, schema: Schema | None) -> Grammar | None:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise refused_value(name, f"{name} is no JSON: {error}") from error
        if not isinstance(schema, dict):
            raise refused_value(name, f"{name} is no JSON object; give a schema")
    return None if schema is None else schema_grammar(schema)


def _by_regex(text: str | None) -> Grammar | None:
    return None if text is None else Grammar.regex(text)


def _by_choice(choices: list[str] | None) -> Grammar | None:
    if choices is None:
        return None
    return Grammar.lark("start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in choices))


def _by_grammar(name: str, text: str | None) -> Grammar | None:
    """Return the rule of a grammar in llguidance's dialect of Lark, or in the EBNF of llama.cpp (GBNF)."""
    if text is None:
        return None
    from llguidance.gbnf_to_lark import any_to_lark  # noqa: PLC0415 (few requests have one)

    try:
        return Grammar.lark(any_to_lark(text))
    except Exception as error:
        raise refused_value(name, f"{name} is neither Lark nor EBNF: {error}") from error
