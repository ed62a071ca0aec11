"""Bodies of requests: what is wrong is refused by the parameter's name."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from pydantic import Field

from flowedge.gateway.answers.body import MAX_FIELDS, BodyObject, CheckedList, RequestBody, Stop, read_body
from flowedge.gateway.errors import ApiError


class Tail(BodyObject):
    length: int


class Animal(RequestBody):
    ignored: ClassVar = frozenset({"owner"})
    without_effect: ClassVar = {"colour": ("grey",)}
    unsupported: ClassVar = {"wings": (0,), "fins": ()}

    name: str
    legs: int = Field(4, ge=0)
    tails: CheckedList[Tail] = Field(default_factory=list)
    stop: Stop = Field(default_factory=list)


def _read(**given: Any) -> Animal:
    return read_body(Animal, json.dumps(given).encode())


def _refusal(text: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_body(Animal, text)
    assert caught.value.status == 400
    return caught.value


def test_null_counts_as_left_out() -> None:
    assert _read(name="cat", legs=None, tails=[{"length": 3}], stop="x") == Animal(
        name="cat", tails=[Tail(length=3)], stop=["x"]
    )


def test_values_that_mean_off_and_ignored_parameters_are_accepted() -> None:
    assert _read(name="cat", wings=0, fins=None, owner={"any": "thing"}).name == "cat"
    assert _read(name="cat", wings=[], fins=False, colour="grey").name == "cat"


def test_what_changes_nothing_is_left_out_by_name() -> None:
    given = {
        "name": "cat",
        "owner": "me",
        "colour": "red",
        "voice": {"deep": True},
        "tails": [{"length": 1}, {"length": 2, "bushy": True}],
    }
    left_out: list[str] = []
    body = read_body(Animal, json.dumps(given).encode(), left_out)
    assert left_out == ["colour", "voice", "tails[1].bushy"]
    assert body.tails[1].length == 2
    with pytest.raises(ApiError) as caught:
        read_body(Animal, json.dumps({"name": "cat", "wings": 2}).encode(), [])
    assert caught.value.param == "wings"


@pytest.mark.parametrize(
    ("given", "param", "code", "problem"),
    [
        ({"wings": 2}, "wings", "unsupported_parameter", "wings is not supported; it may be 0"),
        ({"colour": "red"}, "colour", "unsupported_parameter", 'colour is not supported; it may be "grey"'),
        ({"fins": 1}, "fins", "unsupported_parameter", "fins is not supported; leave it out"),
        ({"leg": 2}, "leg", "unknown_parameter", "there is no parameter leg; did you mean legs?"),
        ({"qqqq": 2}, "qqqq", "unknown_parameter", "there is no parameter qqqq; leave it out"),
        ({"legs": "2"}, "legs", "invalid_value", 'legs is "2": input should be a valid integer'),
        ({"legs": True}, "legs", "invalid_value", "legs is true: input should be a valid integer"),
        ({"legs": -1}, "legs", "invalid_value", "legs is -1: input should be greater than or equal to 0"),
        (
            {"tails": [{"length": 1}, {}]},
            "tails[1].length",
            "missing_required_parameter",
            "tails[1].length is missing",
        ),
        (
            {"tails": [{"length": 1, "x": 2}]},
            "tails[0].x",
            "unknown_parameter",
            "there is no parameter tails[0].x",
        ),
        ({"stop": ["a", ""]}, "stop[1]", "invalid_value", "stop[1]"),
        ({"tails": [7, 8, 9]}, "tails[0]", "invalid_value", "tails[0] is 7: input should be"),
        (
            {"tails": [{f"x{number}": 1 for number in range(MAX_FIELDS + 1)}]},
            "tails[0]",
            "invalid_value",
            "tails[0] is ",
        ),
        ({"name": None}, "name", "missing_required_parameter", "name is missing"),
    ],
)
def test_a_wrong_parameter_is_named(given: dict[str, Any], param: str, code: str, problem: str) -> None:
    error = _refusal(json.dumps({"name": "cat", **given}).encode())
    assert (error.param, error.code) == (param, code)
    assert error.message.startswith(problem)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'"text"', b'{"name": NaN}', b"\xff", b'{"name": "\\ud800"}', b"[" * 100_000]
)
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    assert _refusal(text).code == "invalid_json"


@pytest.mark.parametrize("value", ["x" * 100_000, [[1]] * 100_000, {"a": {"b": "x" * 100_000}}])
def test_of_a_huge_value_only_the_beginning_is_shown(value: object) -> None:
    error = _refusal(json.dumps({"name": "cat", "legs": value}).encode())
    shown = json.dumps(value)[:100]
    assert error.message == f"legs is {shown}: input should be a valid integer"
