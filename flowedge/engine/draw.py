"""How the last stage draws the target's tokens in a forward, and the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.sampling import SamplingParams, walk


@dataclass(frozen=True, eq=False)
class Draw:
    """Draw the target's tokens along the rows of a forward that are on the target's path.

    Attributes:
        features: whether the hidden states of these rows, and of committed rows, are wanted.
        first: offset of the first row of the forward on the path, after which a token has to be drawn;
            None where no row is, so that nothing is drawn.
        tokens: int64 [n], of the rows; of no meaning where they are committed.
        parents: int64 [n], offsets of the parents; -1 where the parent is no row of the forward.
    """

    sampling: SamplingParams
    features: bool
    first: int | None
    tokens: IntArray
    parents: IntArray

    @cached_property
    def visitable(self) -> IntArray:
        """The offsets of the first row and of its descendants, which alone can be on the path: int64 [k]."""
        if self.first is None:
            return np.zeros(0, dtype=np.int64)
        below = {self.first}
        for row, parent in enumerate(self.parents.tolist()):
            if parent in below:
                below.add(row)
        return np.array(sorted(below), dtype=np.int64)

    @cached_property
    def visitable_parents(self) -> list[int]:
        """The parent of each visitable row as an index into them, -1 for the first."""
        indices = {row: index for index, row in enumerate(self.visitable.tolist())}
        return [indices.get(parent, -1) for parent in self.parents[self.visitable].tolist()]

    def follow(self, drawn_after: Callable[[int], int]) -> tuple[IntArray, IntArray]:
        """Follow the draws along the rows.

        Args:
            drawn_after: returns the token drawn after the row at an index among the visitable rows;
                called for rows on the path only.

        Returns:
            The offsets of the rows on the path, and the token drawn after each: int64 [k].
        """
        if self.first is None:
            return self.visitable, self.visitable
        tokens = self.tokens[self.visitable]
        found = walk(tokens.tolist(), self.visitable_parents, drawn_after)
        path = np.array(found.accepted)
        return self.visitable[path], np.append(tokens[path[1:]], found.token)


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """What the last stage has drawn in a forward.

    Attributes:
        rows: int64 [k], offsets of the rows on the path, ascending; tokens: int64 [k], drawn after each.
        payload: the rows' hidden states [k, width], of all n rows where they are committed; of width 0 where
            they are not wanted.
    """

    rows: IntArray
    tokens: IntArray
    payload: Payload
