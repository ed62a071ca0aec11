"""Bodies of requests: what would change an answer and is not supported is refused by its name.

What is unknown, and what changes nothing, is left out, and the answer's headers name it.
"""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from flowedge.core.generate_options import GenerateOptions
from flowedge.core.request import MAX_STOP_LENGTH, MAX_STOP_STRINGS
from flowedge.core.sampling import MIN_TEMPERATURE
from flowedge.gateway.errors import ApiError

BodyT = TypeVar("BodyT", bound="RequestBody")
ItemT = TypeVar("ItemT")
MAX_FIELDS = 256  # of an object in a body; far more than any has
_CONTAINERS = (dict, list)
_MOST_SHOWN = 100  # characters of a value in an error


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop: TypeAlias = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]],
    Field(max_length=MAX_STOP_STRINGS),
    BeforeValidator(_as_list),
]
"""Strings at which an answer ends; one may stand alone."""


Arguments: TypeAlias = dict[str, Any]
"""Options of the client (see GenerateOptions), by name."""
_OPTIONS = {each.name: each.metadata for each in fields(GenerateOptions)}


def shared(option: str, default: Any, *, alias: str | None = None, **bounds: float | None) -> Any:
    """Declare a field of a body with the range of an option of the client.

    Args:
        alias: the field's name in the body, if it is not the option's.
        bounds: replace the option's bounds.
    """
    declared = _OPTIONS[option]
    range_ = {"ge": declared["least"], "gt": declared["above"], "le": declared["most"]}
    return Field(default, alias=alias, **range_ | bounds)


def shared_options(body: BaseModel) -> Arguments:
    """Return the options of the client that a body has fields of the same names for, without the seed.

    A `top_p` of 0, and a temperature too small to divide by, are the ways of some clients to ask for the
    likeliest token.
    """
    names = _OPTIONS.keys() & type(body).model_fields.keys() - {"seed"}
    values = {name: getattr(body, name) for name in names}
    # The draft node takes the model's own for what is left out.
    values = {name: value for name, value in values.items() if value is not None}
    if values.get("top_p") == 0 or values.get("temperature", 1.0) < MIN_TEMPERATURE:
        values |= {"temperature": 0.0, "top_p": values.get("top_p") or 1.0}
    return {name: tuple(each) if isinstance(each, list) else each for name, each in values.items()}


CheckedList: TypeAlias = Annotated[list[ItemT], FailFast()]
"""A list of any length. Only its first wrong item is looked at: a body has room for a million."""


class BodyObject(BaseModel):
    """A JSON object in a body. A field that is null counts as left out.

    Unknown fields are kept, to be told of (see `unknown_fields`), unless a class has `extra="ignore"`.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        if len(content) > MAX_FIELDS:
            raise ValueError(f"it has {len(content)} fields; at most {MAX_FIELDS} are taken")
        return without_nulls(content)


class RequestBody(BodyObject):
    """The body of a request.

    Attributes:
        ignored: parameters that are about the client and change no answer anywhere.
        without_effect: parameters that change no answer here, with the values that say "off" (see `is_off`).
        unsupported: parameters that would change the answer and are not served, with the values that say
            "off", which are accepted.
    """

    ignored: ClassVar[frozenset[str]] = frozenset()
    without_effect: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}


def is_off(value: object, accepted: tuple[object, ...] = ()) -> bool:
    """Return whether a value says that a parameter is not wanted: null, false, an empty text, list or object.

    accepted: further values that say so, such as 1 of a factor.
    """
    number = isinstance(value, int | float) and value is not False
    return value in accepted or not (value or number)


def read_body(model: type[BodyT], text: bytes, left_out: list[str] | None = None) -> BodyT:
    """Return the body of a request.

    Args:
        left_out: takes the names of the parameters that change nothing, at any depth; without it they are
            refused.

    Raises:
        ApiError: 400 with the parameter's name, when the text is not a JSON object, when a number anywhere
            is too large, or when a parameter is not supported, missing or wrong.
    """
    try:
        # Values are not cached: the parser would hold the latest 16,384 short texts of all clients.
        content = from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(content, dict):
        raise ApiError(400, "the body is not a JSON object", code="invalid_json")
    infinite = _infinite_at(content)
    if infinite is not None:
        param = _path(infinite)
        raise refused_value(param, f"{param} is not a finite number; give one below {sys.float_info.max:.1e}")
    given = without_nulls(content)
    for name, value in content.items():
        if name in model.ignored:
            given.pop(name, None)
        elif name in model.unsupported or name in model.without_effect:
            accepted = model.unsupported.get(name, model.without_effect.get(name, ()))
            if given.pop(name, None) is None or is_off(value, accepted):
                continue
            if name in model.unsupported or left_out is None:
                raise not_supported(name, accepted)
            left_out.append(name)
    try:
        body = model.model_validate(given)
    except ValidationError as error:
        raise _refusal(error) from error
    for location in unknown_fields(body):
        if left_out is None:
            raise _unknown(location, model)
        left_out.append(_path(location))
    return body


def unknown_fields(value: object, location: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    """Yield the places of the fields of a body that no class declares."""
    if isinstance(value, BodyObject):
        for name in value.model_extra or ():
            yield (*location, name)
        for name in value.model_fields_set & type(value).model_fields.keys():
            shown = type(value).model_fields[name].alias or name
            yield from unknown_fields(getattr(value, name), (*location, shown))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            if isinstance(each, BodyObject):
                yield from unknown_fields(each, (*location, place))


def without_nulls(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if value is not None}


def not_supported(param: str, accepted: tuple[object, ...] = ()) -> ApiError:
    """Build the refusal of a parameter; `accepted` are the values that it may have nevertheless."""
    known = [_shown(value) for value in accepted if value is not None]
    rest = f"it may be {' or '.join(known)}" if known else "leave it out"
    return ApiError(400, f"{param} is not supported; {rest}", param=param, code="unsupported_parameter")


def refused_value(param: str, problem: str) -> ApiError:
    """Build the refusal of a parameter's value; `problem` says what is wrong and what to do."""
    return ApiError(400, problem, param=param, code="invalid_value")


def _names(model: type[RequestBody]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def _unknown(location: Sequence[int | str], model: type[RequestBody]) -> ApiError:
    param = _path(tuple(location))
    close = difflib.get_close_matches(param, _names(model), n=1)
    hint = f"did you mean {close[0]}?" if close else "leave it out"
    return ApiError(400, f"there is no parameter {param}; {hint}", param=param, code="unknown_parameter")


def _refusal(error: ValidationError) -> ApiError:
    """Build the refusal of a body from its first problem."""
    problem = error.errors(include_url=False)[0]
    param = _path(problem["loc"])
    kind = problem["type"]
    if kind == "missing":
        return ApiError(400, f"{param} is missing", param=param, code="missing_required_parameter")
    expected = problem["msg"].removeprefix("Value error, ")
    return refused_value(
        param, f"{param} is {_shown(problem['input'])}: {expected[:1].lower()}{expected[1:]}"
    )


def _shown(value: object) -> str:
    """Return a value as the client has written it, shortened; only what is shown is encoded."""
    shown = ""
    for piece in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(_beginning(value)):
        shown += piece
        if len(shown) >= _MOST_SHOWN:
            break
    return shown[:_MOST_SHOWN]


def _beginning(value: object) -> object:
    return value[:_MOST_SHOWN] if isinstance(value, str) else value


def _infinite_at(content: dict[str, Any] | list[Any]) -> tuple[int | str, ...] | None:
    """Return the place of a number that is not finite, such as 1e999; None if there is none."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        if isinstance(value, float):
            if not math.isfinite(value):
                return (key,)
        elif value and isinstance(value, _CONTAINERS):
            rest = _infinite_at(value)
            if rest is not None:
                return (key, *rest)
    return None


def _path(location: tuple[int | str, ...]) -> str:
    """Return a place in the body as OpenAI writes it, such as messages[0].content."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:200]
