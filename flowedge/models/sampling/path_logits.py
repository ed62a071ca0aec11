"""The logits of the rows of a draft tree that a walk visits, computed a few rows at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flowedge.models.layers.head import LMHead

AHEAD = 4  # rows of a product, which take little longer than a single row


class PathLogits:
    """Logits for a walk that visits a short path of the tree; most rows are never asked for.

    The head must give a row the same bits whatever the number of rows (see LMHead.rows_are_apart).
    """

    def __init__(self, head: LMHead, hidden: torch.Tensor, parents: Sequence[int]) -> None:
        """Prepare the rows [n, hidden] of a tree.

        Args:
            parents: the parent row of each row; of the children of a row, the likeliest comes first.
        """
        self._head = head
        self._hidden = hidden
        self._likeliest: dict[int, int] = {}  # child of each row
        for row, parent in enumerate(parents):
            self._likeliest.setdefault(parent, row)
        self._known: dict[int, torch.Tensor] = {}

    @property
    def computed(self) -> int:
        """The number of rows whose logits were computed."""
        return len(self._known)

    def of(self, row: int) -> torch.Tensor:
        """Return the logits float32 [vocab] of a row, and compute those of the rows that follow probably."""
        if row not in self._known:
            path = [row]
            while len(path) < AHEAD and (child := self._likeliest.get(path[-1])) is not None:
                path.append(child)
            self._known.update(zip(path, self._head.logits(self._hidden[path]), strict=True))
        return self._known[row]
