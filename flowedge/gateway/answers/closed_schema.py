"""JSON schemas that say nothing about further properties, closed against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowedge.client import Grammar

_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("items",)


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have the listed properties only, as people mean who list them.

    A schema that says itself whether there may be more, and the parts of `allOf`, stay as they are.
    """
    closed = dict(schema)
    for key in _MAPS:
        if isinstance(value := closed.get(key), Mapping):
            closed[key] = {name: _closed(each) for name, each in value.items()}
    for key in _LISTS:
        if isinstance(value := closed.get(key), list):
            closed[key] = [_closed(each) for each in value]
    for key in _SCHEMAS:
        closed.update({key: _closed(closed[key])} if key in closed else {})
    open_ended = {"additionalProperties", "unevaluatedProperties", "patternProperties", "allOf", "$ref"}
    if closed.get("properties") and not open_ended & set(closed):
        closed["additionalProperties"] = False
    return closed


def schema_grammar(schema: Mapping[str, Any]) -> Grammar:
    """Return the rule that an answer is a value of the closed schema."""
    return Grammar.json_schema(closed_schema(schema))


def _closed(value: Any) -> Any:
    return closed_schema(value) if isinstance(value, Mapping) else value
