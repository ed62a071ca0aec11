"""Forms that an answer's text must have: a JSON object, or a value of a JSON schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from flowedge.client import Grammar
from flowedge.serving.answers.body import BodyPart
from flowedge.serving.answers.closed_schema import schema_grammar
from flowedge.serving.errors import ApiError


class SchemaFormat(BodyPart):
    """A JSON schema; without `schema`, any JSON object.

    Attributes:
        strict: answers follow the schema in any case.
    """

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BodyPart):
    """`response_format` of a chat completion."""

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


def grammar_of(kind: str, schema: dict[str, Any] | None) -> Grammar | None:
    """Return what an answer of a format must be; None for any text."""
    if kind == "text":
        return None
    return Grammar.json_object() if schema is None else schema_grammar(schema)
