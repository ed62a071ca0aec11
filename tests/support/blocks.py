"""Fifths of the proof: `make proof BLOCK=3` runs one, and CI one with each change.

The cases with the mark `proof` are dealt out in the order of their ids, so that the cases of each product, of
histories and of fuzz are spread over the blocks. A case that outweighs many others names its block,
`proof(block=2)`, so that the blocks take equally long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest

BLOCKS = 5


def blocks_of(items: Sequence[pytest.Item]) -> dict[str, int]:
    """Return the block of each item of the proof by the item's id."""
    proof = sorted((item for item in items if item.get_closest_marker("proof")), key=lambda item: item.nodeid)
    named = {item.nodeid: block for item in proof if (block := named_block(item)) is not None}
    free = [item.nodeid for item in proof if item.nodeid not in named]
    return named | {nodeid: place % BLOCKS for place, nodeid in enumerate(free)}


def split(items: Sequence[pytest.Item], block: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the items of a block, beside all that are not of the proof, and the items of other blocks."""
    blocks = blocks_of(items)
    chosen = [item for item in items if blocks.get(item.nodeid, block) == block]
    return chosen, [item for item in items if blocks.get(item.nodeid, block) != block]


def fifths(numbers: Iterable[int]) -> Iterator[list[int]]:
    """Return the numbers of one long case as those of BLOCKS shorter cases, each a fifth of the work."""
    every = list(numbers)
    return (every[start::BLOCKS] for start in range(BLOCKS))


def named_block(item: pytest.Item) -> int | None:
    """Return the block that the item's mark names."""
    return next((mark.kwargs["block"] for mark in item.iter_markers("proof") if mark.kwargs), None)
