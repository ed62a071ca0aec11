"""Objects of a schema have the listed properties only, unless the schema says more."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge.gateway.answers.closed_schema import closed_schema

WORD = {"type": "string"}
OPEN = {"type": "object", "properties": {"word": WORD}}
CLOSED = {**OPEN, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (OPEN, CLOSED),
        ({"type": "object"}, {"type": "object"}),
        ({**OPEN, "additionalProperties": True}, {**OPEN, "additionalProperties": True}),
        ({**OPEN, "patternProperties": {"x": WORD}}, {**OPEN, "patternProperties": {"x": WORD}}),
        ({"allOf": [OPEN, OPEN]}, {"allOf": [OPEN, OPEN]}),
        ({"anyOf": [OPEN, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"type": "array", "items": OPEN}, {"type": "array", "items": CLOSED}),
        ({"$defs": {"a": OPEN}, "$ref": "#/$defs/a"}, {"$defs": {"a": CLOSED}, "$ref": "#/$defs/a"}),
        (
            {"properties": {"inner": OPEN, "any": True}},
            {"properties": {"inner": CLOSED, "any": True}, "additionalProperties": False},
        ),
        (
            {"properties": {"properties": WORD}},
            {"properties": {"properties": WORD}, "additionalProperties": False},
        ),
    ],
)
def test_closed_schema(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    before = str(schema)
    assert closed_schema(schema) == expected
    assert str(schema) == before
