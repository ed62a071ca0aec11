"""What an answer must be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flowedge.client.chat.values import is_text, wrong_type
from flowedge.core.errors import BadRequestError
from flowedge.core.plain_text import checked_utf8
from flowedge.v1 import generation_pb2 as pb


@dataclass(frozen=True)
class Grammar:
    """A rule that the whole answer follows; made by one of the class methods.

    Attributes:
        rule: the kind of rule.
        text: the schema as JSON, the Lark grammar or the regular expression; "" for any JSON object.
    """

    rule: Literal["json_object", "json_schema", "lark", "regex"]
    text: str = ""

    @classmethod
    def json_object(cls) -> Grammar:
        """Return the rule that the answer is a JSON object."""
        return cls("json_object")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any]) -> Grammar:
        """Return the rule that the answer is a JSON value of a JSON schema.

        Raises:
            BadRequestError: when the schema is no JSON object.
        """
        return cls("json_schema", json_text("the JSON schema", schema))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Return the rule of a grammar in the Lark dialect of llguidance.

        Raises:
            BadRequestError: when the grammar is empty or no text.
        """
        return cls("lark", _checked_rule("the Lark grammar", text))

    @classmethod
    def regex(cls, text: str) -> Grammar:
        """Return the rule that a regular expression matches the whole answer.

        Raises:
            BadRequestError: when the expression is empty or no text.
        """
        return cls("regex", _checked_rule("the regular expression", text))

    def to_proto(self) -> pb.Grammar:
        match self.rule:
            case "json_object":
                return pb.Grammar(json_object=pb.JsonObject())
            case "json_schema":
                return pb.Grammar(json_schema=self.text)
            case "lark":
                return pb.Grammar(lark=self.text)
            case _:
                return pb.Grammar(regex=self.text)


def json_text(name: str, value: Mapping[str, Any]) -> str:
    """Return a JSON object as text; `name` is what the value is for.

    Raises:
        BadRequestError: when the value is no JSON object.
    """
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, "a dict")
    try:
        text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"{name} is no JSON object: {error}") from error
    return checked_utf8(text, name)


def _checked_rule(name: str, text: str) -> str:
    if not is_text(text):
        raise wrong_type(name, text, "text")
    if not text.strip():
        raise BadRequestError(f"{name} is empty")
    return checked_utf8(text, name)
