"""How far down the true path the best draft tree of so many rows goes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TreeCoverage:
    """Of trees drafted at several places of one true path.

    Attributes:
        sizes: for each node of a tree that is on the true path, the root apart, the rows of the smallest
            best-first part of its tree that holds it, the root's included; of all trees, ascending.
        trees: how many there were.
    """

    sizes: tuple[int, ...]
    trees: int

    @classmethod
    def of(cls, trees: Sequence[Sequence[int]]) -> TreeCoverage:
        """The reach of trees, each given by the sizes of its own."""
        return cls(tuple(sorted(size for tree in trees for size in tree)), len(trees))

    def depth(self, rows: float) -> float:
        """C(M): expected depth of the true path inside the best `rows` rows of a tree; 0 with one or less.

        Between two whole numbers it is interpolated.
        """
        if not self.trees:
            return 0.0
        whole = math.floor(rows)
        below, above = (bisect_right(self.sizes, count) / self.trees for count in (whole, whole + 1))
        return below + (rows - whole) * (above - below)


UNDRAFTED = TreeCoverage((), 0)  # of a method that drafts nothing
