"""Every case of the proof is in one block, and the blocks are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.support.blocks import BLOCKS, fifths, split


class Case:
    """What `split` asks of a pytest.Item."""

    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid, self.marks = nodeid, marks

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        return (mark for mark in self.marks if mark.name == name)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next(self.iter_markers(name), None)


def case(nodeid: str, **proof: Any) -> pytest.Item:
    return cast(pytest.Item, Case(nodeid, pytest.mark.proof(**proof).mark))


def test_the_blocks_are_the_proof_and_have_equal_parts_of_every_product() -> None:
    products = [case(f"test_{name}[{number:02}]") for name in "abc" for number in range(20)]
    chosen = [split(products, block)[0] for block in range(BLOCKS)]
    assert sorted(item.nodeid for part in chosen for item in part) == [item.nodeid for item in products]
    for part in chosen:
        assert set(Counter(item.nodeid[:6] for item in part).values()) == {4}


def test_a_case_that_names_a_block_is_in_that_one() -> None:
    named, other = case("boots", block=3), cast(pytest.Item, Case("no proof"))
    for block in range(BLOCKS):
        chosen, left = split([named, other], block)
        assert (chosen, left) == (([named, other], []) if block == 3 else ([other], [named]))


def test_fifths_of_a_range_are_disjoint_and_alike() -> None:
    parts = list(fifths(range(103)))
    assert sorted(number for part in parts for number in part) == list(range(103))
    assert {len(part) for part in parts} == {20, 21}
