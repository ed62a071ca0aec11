"""Checks of the types of values that a program hands to the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real

from flowedge.core.errors import BadRequestError


def wrong_type(name: str, value: object, expected: str) -> BadRequestError:
    """Return the error of a value that has the wrong type; `expected` says which one it must have."""
    return BadRequestError(f"{name} is {value!r:.200} ({type(value).__name__}); it must be {expected}")


def is_text(value: object) -> bool:
    return isinstance(value, str)


def is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


def are_texts(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(map(is_text, value))


def are_numbers_by_name(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(is_text, value)) and all(map(is_number, value.values()))


def are_numbers_by_token(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(is_integer, value)) and all(map(is_number, value.values()))
