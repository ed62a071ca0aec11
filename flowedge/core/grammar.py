"""What an answer must be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from flowedge.core.errors import BadRequestError, GrammarError, wrong_type
from flowedge.core.plain_text import checked_utf8

GrammarKind: TypeAlias = Literal["json_object", "json_schema", "lark", "regex"]
MAX_GRAMMAR = 128 << 10  # characters


@dataclass(frozen=True)
class GrammarSource:
    """What the answer must be: a JSON object, JSON of a schema, or a text of a Lark grammar or a regex.

    Attributes:
        text: the schema, the grammar or the regular expression; empty for a JSON object.
        ends_late: whether the answer ends only where nothing but its end is allowed (see ignore_eos).

    Raises:
        GrammarError: when the text is empty or too long.
    """

    kind: GrammarKind
    text: str = ""
    ends_late: bool = False

    def __post_init__(self) -> None:
        if self.kind != "json_object" and not self.text.strip():
            raise GrammarError(f"{self.parameter} is empty; give its text, or leave it out")
        if len(self.text) > MAX_GRAMMAR:
            raise GrammarError(
                f"{self.parameter} has {len(self.text)} characters; at most {MAX_GRAMMAR} are taken"
            )

    @property
    def parameter(self) -> str:
        """The parameter that it came by, for messages."""
        return f"grammar ({self.kind})"


@dataclass(frozen=True)
class Grammar:
    """A rule that the whole answer follows; made by one of the class methods.

    Attributes:
        rule: the kind of rule.
        text: the schema as JSON, the Lark grammar or the regular expression; "" for any JSON object.
    """

    rule: GrammarKind
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

    @classmethod
    def from_plain(cls, given: Mapping[str, Any]) -> Grammar:
        """Return the rule that a client has sent as a JSON object.

        Raises:
            BadRequestError: when it is no rule.
        """
        rule: Any = given.get("rule")
        text = given.get("text", "")
        if rule not in get_args(GrammarKind) or not isinstance(text, str) or given.keys() - {"rule", "text"}:
            raise wrong_type("grammar", given, f"a rule, {', '.join(get_args(GrammarKind))}, and its text")
        return cls(rule, text)


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
    if not isinstance(text, str):
        raise wrong_type(name, text, "text")
    if not text.strip():
        raise BadRequestError(f"{name} is empty")
    return checked_utf8(text, name)
