"""How the product of several parameters is divided between `make test` and `make proof`.

`make test` runs a diagonal of the product, or the thinnest there is, in which every value of every parameter
occurs. `make proof` runs the other cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def diagonal(*axes: Sequence[Any], one_in: int) -> list[tuple[Any, ...]]:
    """Return the cases of the product whose places along the axes have a sum that `one_in` divides."""
    chosen = [
        tuple(axis[place] for axis, place in zip(axes, places, strict=True))
        for places in itertools.product(*(range(len(axis)) for axis in axes))
        if sum(places) % one_in == 0
    ]
    for position, axis in enumerate(axes):
        assert {case[position] for case in chosen} == set(axis), "a value that no case has"
    return chosen


def dealt(cases: Iterable[Any], tested: Callable[[Any], bool]) -> list[Any]:
    """Return parameters for all cases; a case that is not `tested` by `make test` has the mark `proof`.

    Args:
        cases: values of one parameter, or tuples of values of several; tuples may be nested.
    """
    proof = (pytest.mark.proof,)
    return [
        pytest.param(*values, id="-".join(map(str, values)), marks=() if tested(case) else proof)
        for case, values in ((case, _values(case)) for case in cases)
    ]


def dealt_diagonally(*axes: Sequence[Any], one_in: int) -> list[Any]:
    """Return parameters for the product of the axes, of which `make test` runs `diagonal`."""
    tested = diagonal(*axes, one_in=one_in)
    return dealt(itertools.product(*axes), tested.__contains__)


def thinnest(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return as many cases of the product as its longest axis has values; every value of each axis occurs."""
    return [tuple(axis[place % len(axis)] for axis in axes) for place in range(max(map(len, axes)))]


def dealt_thinly(*axes: Sequence[Any]) -> list[Any]:
    """Return parameters for the product of the axes, of which `make test` runs `thinnest`."""
    return dealt(itertools.product(*axes), thinnest(*axes).__contains__)


def _values(case: Any) -> tuple[Any, ...]:
    return tuple(value for part in case for value in _values(part)) if isinstance(case, tuple) else (case,)
