"""How far the best draft tree of a given size follows the true path."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TreeCoverage:
    """The coverage of a true path by trees that are drafted at several places of it.

    Attributes:
        sizes: for each node on the true path, except roots, the rows of the smallest best-first part of its
            tree that holds the node, the root's row included. All trees together, ascending.
        trees: number of trees.
    """

    sizes: tuple[int, ...]
    trees: int

    @classmethod
    def of(cls, trees: Sequence[Sequence[int]]) -> TreeCoverage:
        """Return the coverage by trees, each given by its own sizes."""
        return cls(tuple(sorted(size for tree in trees for size in tree)), len(trees))

    def depth(self, rows: float) -> float:
        """Return C(M): the expected depth of the true path inside the best `rows` rows of a tree.

        The depth is 0 for one row or less, and is interpolated between whole numbers.
        """
        if not self.trees:
            return 0.0
        whole = math.floor(rows)
        below, above = (bisect_right(self.sizes, count) / self.trees for count in (whole, whole + 1))
        return below + (rows - whole) * (above - below)


UNDRAFTED = TreeCoverage((), 0)  # of a method that drafts nothing
