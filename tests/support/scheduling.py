"""How tests are dealt out to the processes of a test run.

A unit of tests goes to one process. A fixture that is costly to make, and shared by files, is declared with
`params=shared("NAME")`. pytest then puts the name into the id of each test that uses the fixture, directly or
through other fixtures, and all these tests make one unit. The other tests of a file make one unit, but a test
with a parameter whose id has the word "shard" and a number is a unit by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.blocks import named_block

_SHARED = re.compile(r"[\[-](shared:\w+)[\]-]")
_SHARD = re.compile(r"\[[^\]]*\bshard\d+")


def shared(name: str) -> list[Any]:
    """Return the parameters of a fixture whose tests go to one process; the fixture ignores their value."""
    return [pytest.param(None, id=f"shared:{name}")]


def unit_of(nodeid: str) -> str:
    """Return the unit of work that a test belongs to."""
    if found := _SHARED.search(nodeid):
        return found.group(1)
    return nodeid if _SHARD.search(nodeid) else nodeid.partition("::")[0]


class Units(LoadScopeScheduling):
    """Gives each unit to one process, in the order that they were collected in."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def slow_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the items in the order to deal them out: no process is left with a long unit at the end.

    First come cases of the proof that outweigh others, which name their block, then units with a slow test.
    """
    rank: dict[str, int] = {}
    for item in items:
        named = named_block(item) is not None
        own = 0 if named else 1 if item.get_closest_marker("slow") is not None else 2
        unit = unit_of(item.nodeid)
        rank[unit] = min(own, rank.get(unit, own))
    return sorted(items, key=lambda item: rank[unit_of(item.nodeid)])
